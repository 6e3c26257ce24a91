"""What every test shares: one thread of torch, so that results do not depend on the machine's cores, and a Ctrl-C that counts."""

from __future__ import annotations

import signal

import torch

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of what a shell has started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)
