"""Examples at the size that the interpreter can do, with tiles so small that there are several."""

from unittest import mock

import torch
from gpu_check import make

from selattn.ops.backends.triton import Triton, configs, selfcheck
from selattn.ops.backends.triton.configs import Config, Tile

SMALL = Config(16, *(Tile(16, 4, 1, 2) for _ in range(7)))


def size(dtype=torch.float32, n=37):
    return selfcheck.Size(n, 16, dtype, torch.device("cpu"))


def wrong(name, dtype=torch.float32, config=SMALL):
    """What is wrong in a situation, a line for each result."""
    with mock.patch.object(configs, "INTERPRETED", config):
        return selfcheck.judge(make(name, size(dtype)), Triton())
