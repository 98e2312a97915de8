"""Which rows make up which step: a pure function of the step, whatever the number of devices.

The samples of a run are numbered from its beginning to its end, shuffled or not. Step s takes the samples s * B to
(s + 1) * B - 1, B being the global batch, so a run that resumes at step s starts there and neither skips nor repeats
one. Inside a step, micro batch m of device r takes the samples from (m * devices + r) * micro on: all devices together
take all of them, and no two the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import Sampler


@dataclass(frozen=True)
class Share:
    """One device's part of every step: `micro` samples, `accumulate` times."""

    micro: int
    accumulate: int
    rank: int = 0
    devices: int = 1

    def samples(self, step: int) -> Iterator[list[int]]:
        """The samples of each of its micro batches in a step."""
        for m in range(self.accumulate):
            first = ((step * self.accumulate + m) * self.devices + self.rank) * self.micro
            yield list(range(first, first + self.micro))


class StepBatches(Sampler[list[int]]):
    """The micro batches of one device from step `start` up to `steps`, for torch's DataLoader.

    Its length is that of the whole run, not of what is left: the Trainer derives from it how long a run is.
    """

    def __init__(self, share: Share, steps: int, start: int = 0) -> None:
        self.share, self.steps, self.start = share, steps, start

    def __len__(self) -> int:
        return self.steps * self.share.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.start, self.steps):
            yield from self.share.samples(step)
