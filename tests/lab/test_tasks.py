"""The synthetic tasks: purity, the dataset's interface, rendering, accuracy, and each against its definition."""

import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.__main__ import main as lab
from lab.tasks import IGNORE, TASKS, Copy, Parity, VariableAssignment, make_task
from selattn.data import read_tokenizer
from selattn.data.task import SAMPLE
from selattn.errors import SelattnError

variable_assignments = st.builds(
    VariableAssignment,
    st.integers(1, 40),
    st.integers(1, 60),
    st.integers(1, 30),
    drawn_values=st.just(None) | st.just(1),
)
copies = st.integers(1, 30).flatmap(
    lambda longest: st.builds(Copy, st.just(longest), st.integers(1, longest), st.integers(1, 40))
)
parities = st.builds(Parity, st.integers(2, 80))
tasks = variable_assignments | copies | parities
seeds = st.integers(0, 2**64 - 1)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@given(task=tasks, seed=seeds, size=st.integers(1, 50), data=st.data())
def test_a_sample_is_a_pure_function_of_seed_and_index(task, seed, size, data):
    """Any order, any batch, any size of the dataset, and any process."""
    dataset = task.dataset(seed, size)
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=6))
    longer = pickle.loads(pickle.dumps(task.dataset(seed, size + 1)))
    for index, sample in zip(indices, dataset.__getitems__(indices), strict=True):
        assert same(sample, dataset[index])
        assert same(sample, longer[index])


@given(task=tasks, seed=seeds)
def test_the_interface_of_every_dataset(task, seed):
    dataset = task.dataset(seed, 3)
    assert (len(dataset), dataset.vocab_size, dataset.context) == (3, task.vocab_size, task.context)
    for sample in dataset:
        assert sample.keys() - {"attention_mask"} == {"input_ids", "labels"}
        for column in sample.values():
            assert column.dtype == torch.int64
            assert column.shape == (task.context,)
        ids, labels = sample["input_ids"], sample["labels"]
        assert (ids >= 0).all()
        assert (ids < task.vocab_size).all()
        has_loss = labels != IGNORE
        assert torch.equal(labels[has_loss], ids[has_loss])
        assert has_loss.any()
        assert not has_loss[0]


@given(task=tasks, seed=seeds)
def test_rendering_can_be_read_back(task, seed):
    ids = task.dataset(seed, 1)[0]["input_ids"]
    assert len(task.tokens) == len(set(task.tokens)) == task.vocab_size
    assert [task.tokens.index(word) for word in task.render(ids).split(" ")] == ids.tolist()


@given(task=tasks, seed=seeds, data=st.data())
def test_accuracy_counts_whole_samples(task, seed, data):
    """Logits that predict each next token are right; one labelled token wrong spoils its sample, others do not."""
    batch = torch.utils.data.default_collate(list(task.dataset(seed, 4)))
    following = batch["input_ids"].roll(-1, 1)
    logits = torch.nn.functional.one_hot(following, task.vocab_size + 1).float()
    assert task.accuracy(logits, batch["labels"]) == 1.0
    place = data.draw(st.integers(0, task.context - 2))
    logits[1, place] = 0
    logits[1, place, task.vocab_size] = 1
    spoilt = batch["labels"][1, place + 1] != IGNORE
    assert task.accuracy(logits, batch["labels"]) == (0.75 if spoilt else 1.0)
    assert task.correct(logits, batch["labels"]).tolist() == [True, not spoilt, True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_task("party"), "unknown task 'party'; did you mean 'parity'"),
        (lambda: make_task("xyz"), "there are variable-assignment, copy, parity"),
        (lambda: make_task("copy", longes=3), "task copy has no setting 'longes'; did you mean 'longest'"),
        (lambda: VariableAssignment(variables=0), "variables must be at least 1, not 0"),
        (lambda: VariableAssignment(values=3, drawn_values=4), r"drawn_values must be in 1 \.\. 3"),
        (lambda: Copy(longest=2, shortest=3), "longest .2. is less than shortest .3."),
        (lambda: Copy(symbols=0), "symbols must be at least 1"),
        (lambda: Parity(1), "bits must be at least 2"),
        (lambda: Parity().dataset(-1, 5), "a seed must be in"),
        (lambda: Parity().dataset(0, 0), "at least one sample"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(SelattnError, match=message):
        make()


def test_a_task_is_shown(capsys):
    assert lab(["show", "copy", "--samples", "2", "--set", "longest=3", "--set", "symbols=1"]) == 0
    title, *samples = capsys.readouterr().out.splitlines()
    assert title == "Copy(longest=3, shortest=1, symbols=1): vocabulary 5, context 9; [loss]"
    assert len(samples) == 2
    for sample in samples:
        assert sample.startswith("<BOS> a ")
        assert " <SEP> [a] " in sample


@pytest.mark.parametrize("task", TASKS.values())
def test_a_model_s_reader_reads_what_the_task_writes(task, tmp_path):
    """Ids of the sample are those of the row, <BOS> included where the task has one."""
    made = task()
    made.save_reader(tmp_path)
    row = made.dataset(0, 1)[0]["input_ids"].tolist()
    text = (tmp_path / SAMPLE).read_text()
    ids, tokens = read_tokenizer(tmp_path).split(text)
    assert ids == row[: len(ids)]
    assert made.render(ids[1:]) == text.strip()
    assert "".join(tokens[1:]).strip() == text.strip()


# --- Variable Assignment, against an interpreter that runs the program it is


@given(task=variable_assignments, seed=seeds)
def test_the_answer_is_what_an_interpreter_says(task, seed):
    """From the rendering alone: tokens of either kind alternate, and the last assignment wins."""
    for sample in task.dataset(seed, 5):
        bos, *words = task.render(sample["input_ids"]).split()
        assert bos == "<BOS>"
        memory = {}
        *program, query, answer = words
        assert len(program) == 2 * task.assignments
        for variable, value in zip(program[::2], program[1::2], strict=True):
            assert re.fullmatch(r"[A-Z]\d?=", variable)
            assert int(value) < (task.drawn_values or task.values)
            memory[variable] = value
        assert memory[query] == answer  # a KeyError would be a question about what was never assigned
        assert (sample["labels"] != -100).nonzero().tolist() == [[task.context - 1]]


def test_the_query_is_uniform_over_the_assigned_variables():
    """With few assignments some variables are missing; each of those present must be asked for equally often."""
    task, size = VariableAssignment(3, 2, 2), 6000
    ids = np.stack([sample["input_ids"].numpy() for sample in task.dataset(1, size).__getitems__(range(size))])
    two = ids[ids[:, 1] != ids[:, 3]]
    assert abs((two[:, -2] == two[:, 1]).mean() - 0.5) < 4.5 * 0.5 / len(two) ** 0.5


# --- Copy, against its definition


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


# --- Parity*, against both of the paper's definitions


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
