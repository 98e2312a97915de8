"""What a call costs beside its arithmetic, counted in calls of functions of ours: a clock says nothing certain."""

import cProfile
import pstats

import pytest
import torch

from selattn.ops import causal_attention, selective_attention


def own_calls(function):
    function()  # what is remembered, and what is imported late
    profile = cProfile.Profile()
    profile.runcall(function)
    found = pstats.Stats(profile).stats.items()
    return sum(counts[1] for (file, *_), counts in found if "selattn/ops/" in file.replace("\\", "/"))


@pytest.mark.parametrize(
    ("attend", "forward", "both"),
    [(causal_attention, 105, 195), (selective_attention, 120, 220)],
    ids=["causal", "selective"],
)
def test_a_small_call_stays_cheap(attend, forward, both):
    """Not far above what it was when this was written: 91, 176, 108 and 200."""
    inputs = [torch.randn(1, 2, 4, 8).requires_grad_() for _ in range(3)]
    assert 20 < own_calls(lambda: attend(*inputs)) <= forward
    assert 20 < own_calls(lambda: attend(*inputs).sum().backward()) <= both
