"""What a process runs that is killed: forked from one that has imported this, so none waits for torch."""

import os

import torch

from tests.conversion.tiny import go


def resumed(world, path):
    """The tiny conversion, resumed if there is something to resume."""
    torch.set_num_threads(1)
    os.environ["SELATTN_CACHE"] = str(world / "cache")
    go(world, path, resume=True)
