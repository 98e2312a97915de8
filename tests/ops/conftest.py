"""Uninitialised memory is filled with NaN, so that nothing passes by reading zeros that were never written."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _poisoned_memory():
    torch.use_deterministic_algorithms(True)  # which is what makes torch.empty give NaN
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
