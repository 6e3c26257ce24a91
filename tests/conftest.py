"""What every test shares: one thread of torch, so that results do not depend on the machine's cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
