"""Parity*, held against both of the paper's definitions."""

import torch
from hypothesis import given

from lab.tasks import Parity
from tests.lab.tasks.tasks import parities, seeds


@given(task=parities, seed=seeds)
def test_even_positions_are_parities(task, seed):
    for sample in task.dataset(seed, 5):
        bos, *words = task.render(sample["input_ids"]).split()
        assert bos == "<BOS>"
        bits = [0, *map(int, words)]  # so that bits[p] is the one at position p, counted from 1
        for p in range(2, task.bits + 1, 2):
            assert bits[p] == sum(bits[1:p:2]) % 2
            assert bits[p] == bits[p - 1] ^ bits[p - 2]
        with_loss = [p for p, label in enumerate(sample["labels"].tolist()) if label != -100]
        assert with_loss == list(range(2, task.bits + 1, 2))


def test_odd_positions_are_random():
    task, size = Parity(16), 4000
    ids = torch.stack([sample["input_ids"] for sample in task.dataset(0, size).__getitems__(range(size))])
    ones = (ids[:, 1::2] == 2).double().mean(0)
    assert (ones - 0.5).abs().max() < 4.5 * 0.5 / size**0.5
    pairs = (ids[:, 1:-2:2] == ids[:, 3::2]).double().mean(0)
    assert (pairs - 0.5).abs().max() < 4.5 * 0.5 / size**0.5
