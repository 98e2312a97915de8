"""Copy, held against its definition."""

import numpy as np
from hypothesis import given

from lab.tasks import Copy
from tests.lab.tasks.tasks import copies, seeds


@given(task=copies, seed=seeds)
def test_the_copy_is_a_copy(task, seed):
    for sample in task.dataset(seed, 5):
        words = task.render(sample["input_ids"]).split()
        real = int(sample["attention_mask"].sum())
        assert sample["attention_mask"].tolist() == [1] * real + [0] * (task.context - real)
        assert words[real:] == ["<PAD>"] * (task.context - real)
        length = words.index("<SEP>") - 1
        assert task.shortest <= length <= task.longest
        source = words[1 : length + 1]
        assert not set(source) & {"<PAD>", "<BOS>", "<SEP>", "<EOS>"}
        assert words[:real] == ["<BOS>", *source, "<SEP>", *source, "<EOS>"]
        with_loss = [i for i, label in enumerate(sample["labels"].tolist()) if label != -100]
        assert with_loss == list(range(length + 2, real))


def test_the_paper_s_setting_is_the_default():
    task = Copy()
    assert (task.shortest, task.longest, task.context) == (1, 24, 3 + 2 * 24)
    assert task.vocab_size == 4 + 26


def test_lengths_and_symbols_are_uniform():
    task, size = Copy(longest=12, symbols=8), 6000
    rows = task.dataset(0, size).__getitems__(range(size))
    lengths = np.array([int(sample["attention_mask"].sum() - 3) // 2 for sample in rows])
    first = np.array([int(sample["input_ids"][1]) - 4 for sample in rows])
    for drawn, count in ((lengths - 1, 12), (first, 8)):
        share = np.bincount(drawn, minlength=count) / size
        assert np.abs(share - 1 / count).max() < 4.5 * (1 / count / size) ** 0.5
