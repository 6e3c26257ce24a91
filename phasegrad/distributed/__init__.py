"""Several processes as one run: how they join, agree on numbers and share memory."""
