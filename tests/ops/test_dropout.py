"""Dropout of attention weights: unbiased, governed by torch's seed, the same weights forward and backward."""

from unittest import mock

import pytest
import torch
from torch.testing import assert_close

from selattn.ops import causal_attention, selective_attention
from selattn.ops.backends import chunked
from selattn.ops.backends.tile import Tile
from selattn.ops.request import Request
from selattn.ops.rules import Rules
from tests.ops.cases import BACKENDS, only

DROPPING = only(BACKENDS, "cpu")


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("function", [selective_attention, causal_attention])
@pytest.mark.parametrize("backend", DROPPING)
def test_mean_over_seeds_is_the_output_without(backend, function):
    """Within 5 standard errors, element by element; and every seed drops other weights."""
    q, k, v = normal(1, 2, 6, 4), normal(1, 2, 6, 4), normal(1, 2, 6, 4)
    drawn = torch.stack([function(q, k, v, dropout_p=0.3, backend=backend) for _ in range(600)])
    want = function(q, k, v, backend=backend)
    error = drawn.std(0) / len(drawn) ** 0.5
    assert (error > 1e-3).all()
    assert ((drawn.mean(0) - want).abs() / error).max() < 5
    assert len(drawn.flatten(1).unique(dim=0)) > 500


@pytest.mark.parametrize("backend", DROPPING)
def test_a_seed_repeats_and_another_does_not(backend):
    q, k, v = normal(2, 2, 40, 4), normal(2, 2, 40, 4), normal(2, 2, 40, 4)

    def draw(seed):
        torch.manual_seed(seed)
        return selective_attention(q, k, v, dropout_p=0.5, backend=backend)

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    rows = draw(3)
    assert not torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("backend", DROPPING)
def test_gradient_with_a_fixed_seed_is_the_finite_difference(backend):
    """In strips and blocks small enough that forward and backward cut the matrix differently."""
    leaves = [normal(1, 2, 7, 3).requires_grad_() for _ in range(3)]

    def call(q, k, v):
        torch.manual_seed(5)
        return selective_attention(q, k, v, dropout_p=0.4, backend=backend)

    with mock.patch.multiple(chunked, STRIP_WIDTHS=(2, 2), DROPOUT_BLOCK=3):
        assert torch.autograd.gradcheck(call, leaves, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("block", [1, 3, 4, 100])
def test_rows_and_columns_of_strips_drop_the_same_weights(block):
    shape = (2, 3, 11, 4)
    request = Request(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape), Rules(scale=1.0, dropout_p=0.5))
    request = request._replace(seed=torch.tensor(7))
    with mock.patch.object(chunked, "DROPOUT_BLOCK", block):
        whole = chunked.dropout_scale(request, Tile(0, 11, 0, 11))
        rows = torch.cat([chunked.dropout_scale(request, Tile(r, min(r + 3, 11), 0, 11)) for r in range(0, 11, 3)], 2)
        cols = torch.cat([chunked.dropout_scale(request, Tile(0, 11, c, min(c + 2, 11))) for c in range(0, 11, 2)], 3)
        other = chunked.dropout_scale(request._replace(seed=torch.tensor(8)), Tile(0, 11, 0, 11))
    assert_close(rows, whole, rtol=0, atol=0)
    assert_close(cols, whole, rtol=0, atol=0)
    assert not torch.equal(other, whole)
    assert set(whole.unique().tolist()) == {0.0, 2.0}


def test_blocks_drop_different_weights():
    """Neither do two blocks of one matrix repeat each other, nor do those of two seeds."""
    shape = (1, 1, 24, 4)
    request = Request(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape), Rules(scale=1.0, dropout_p=0.5))
    with mock.patch.object(chunked, "DROPOUT_BLOCK", 8):
        drawn = [
            chunked.dropout_scale(request._replace(seed=torch.tensor(seed)), Tile(0, 24, 0, 24))[0, 0]
            for seed in (0, 1, 2, 1 << 16, (1 << 31) - 1)
        ]
    blocks = [x.unflatten(0, (3, 8)).unflatten(2, (3, 8)).transpose(1, 2).reshape(9, 64) for x in drawn]
    assert len(torch.cat(blocks).unique(dim=0)) == 9 * len(drawn)
