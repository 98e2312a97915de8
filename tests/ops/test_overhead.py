"""What a call costs beside its arithmetic, counted in calls of functions of ours: a clock says nothing certain."""

import pytest
import torch

from selattn.ops import causal_attention, selective_attention
from tools.journey import functions_called


@pytest.mark.parametrize("attend", [causal_attention, selective_attention])
def test_a_small_call_stays_cheap(attend):
    inputs = [torch.randn(1, 2, 4, 8).requires_grad_() for _ in range(3)]
    with torch.no_grad():
        assert 20 < functions_called(lambda: attend(*inputs)).total() <= 60
    assert 20 < functions_called(lambda: attend(*inputs).sum().backward()).total() <= 100
