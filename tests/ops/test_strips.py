"""Strips of several blocks of queries: the compiled backend takes them where a call has many blocks for each thread."""

import pytest
import torch
from torch.testing import assert_close

from selattn.ops import Sequences
from tests.ops import test_dead as dead

COPIES = 16  # of two rows of 5 blocks: enough for strips of 4 blocks, with up to 2 threads


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def repeated(x):
    """The batch, many times over."""
    if isinstance(x, Sequences):
        return Sequences(repeated(x.start))
    return x.repeat(COPIES, *(1,) * (x.dim() - 1)) if isinstance(x, torch.Tensor) and x.dim() > 1 else x


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", dead.KINDS)
def test_many_rows_at_once_are_as_each_alone(kind, threads):
    """Alone, blocks go one by one. The same columns die, and results differ by rounding only."""
    torch.set_num_threads(threads)
    leaves, options = dead.situation(kind)
    upstream = dead.upstreams(leaves)
    want, living = dead.results(leaves, options, "cpu", upstream)
    copies = [repeated(x.detach()).requires_grad_() for x in leaves]
    many = {name: repeated(option) for name, option in options.items()}
    got, all_living = dead.results(copies, many, "cpu", [repeated(x) for x in upstream])
    assert torch.equal(all_living, living.repeat(COPIES))
    for name, g, w in zip(dead.NAMES, got, want, strict=True):
        assert_close(g, repeated(w), rtol=1e-11, atol=1e-11 * w.abs().max().item(), msg=name)
        assert torch.equal(g, repeated(g[: dead.B])), name


@pytest.mark.parametrize("n", [1537, 1728, 3100])
def test_long_rows(n):
    """The last strip has fewer blocks than the others, or a block a single row."""
    torch.set_num_threads(1)
    leaves = [(gain * torch.randn(1, 2, n, 8, dtype=torch.float64)).requires_grad_() for gain in (3.0, 1.0, 1.0)]
    upstream = torch.randn(1, 2, n, 8), torch.randn(1, 1, n)
    options = {}
    got, living = dead.results(leaves, options, "cpu", upstream)
    want, _ = dead.results(leaves, options, "reference", upstream)
    assert living < 0.5
    for name, g, w in zip(dead.NAMES, got, want, strict=True):
        assert (g - w).abs().max() <= 1e-7 * w.abs().max(), name
