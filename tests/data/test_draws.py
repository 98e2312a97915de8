"""Draws and orders are pure functions, and look random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.data.draws import Draw, mix, shuffled
from selattn.errors import SelattnError

SEEDS = st.integers(0, 2**64 - 1)


def chi_square(counts):
    """Per degree of freedom: about 1 for uniform counts, with a spread of sqrt(2 / degrees)."""
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum() / (counts.size - 1)


@given(seed=SEEDS, indices=st.lists(st.integers(0, 2**62), min_size=1, max_size=8), bound=st.integers(1, 2**31))
def test_a_sample_does_not_depend_on_its_batch(seed, indices, bound):
    draw = Draw(seed, indices)
    together = np.concatenate([draw.below(bound, 5), draw.below(7)], axis=1)
    assert (together[:, :5] < bound).all()
    assert (together >= 0).all()
    for row, index in zip(together, indices, strict=True):
        alone = Draw(seed, [index])
        assert (row == np.concatenate([alone.below(bound, 5), alone.below(7)], axis=1)[0]).all()


@pytest.mark.parametrize("bound", [2, 3, 10, 1000])
def test_draws_are_uniform(bound):
    """Along the draws of one sample, across samples, and across seeds."""
    many = 100 * bound
    along = Draw(3, [5]).below(bound, many)
    across = Draw(3, np.arange(many)).below(bound)
    seeds = np.array([Draw(seed, [5]).below(bound)[0, 0] for seed in range(20 * bound)])
    for drawn in (along, across, seeds):
        assert abs(chi_square(np.bincount(drawn.ravel(), minlength=bound)) - 1) < 5 * (2 / (bound - 1)) ** 0.5


def test_neighbours_are_independent():
    """Pairs of draws that follow each other, in a sample and from sample to sample."""
    drawn = Draw(1, np.arange(4000)).below(10, 2)
    for pair in (drawn, np.stack([drawn[:-1, 0], drawn[1:, 0]], 1)):
        counts = np.bincount(pair[:, 0] * 10 + pair[:, 1], minlength=100)
        assert abs(chi_square(counts) - 1) < 5 * (2 / 99) ** 0.5


def test_mix_is_splitmix64():
    """The first outputs for seed 1234567, which every SplitMix64 gives."""
    outputs = [mix(1234567 + (k + 1) * 0x9E3779B97F4A7C15) for k in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(size=st.integers(1, 300), seed=SEEDS, epoch=st.integers(0, 1000))
def test_an_epoch_has_every_sample_once(size, seed, epoch):
    assert sorted(shuffled(i, size, seed, epoch) for i in range(size)) == list(range(size))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_is_one_word(seed):
    with pytest.raises(SelattnError, match="a seed must be in"):
        Draw(seed, [0])
    with pytest.raises(SelattnError, match="a seed must be in"):
        shuffled(0, 10, seed, 0)
