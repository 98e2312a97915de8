"""Variable Assignment against an interpreter that runs the program it is."""

import re

import numpy as np
import torch
from hypothesis import given

from lab.tasks import VariableAssignment
from tests.lab.tasks.tasks import seeds, variable_assignments


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


def test_the_paper_s_setting_is_the_default():
    task = VariableAssignment()
    assert (task.variables, task.values, task.assignments) == (3, 1000, 128)
    assert (task.vocab_size, task.context) == (1 + 3 + 1000, 1 + 2 * 128 + 2)
    assert task.tokens[:6] == ("<BOS>", "Z=", "Y=", "X=", "0", "1")
    ten = VariableAssignment.ten_by_ten()
    assert (ten.variables, ten.values, ten.vocab_size) == (10, 10, 21)


def test_out_of_distribution_has_two_values_and_the_same_ids():
    task = VariableAssignment(assignments=16)
    few = task.out_of_distribution()
    assert few.tokens == task.tokens
    assert few.context == task.context
    ids = torch.stack([sample["input_ids"] for sample in few.dataset(0, 100)])
    assert {task.tokens[i] for i in ids.unique().tolist()} == {"<BOS>", "Z=", "Y=", "X=", "0", "1"}


def test_everything_is_uniform():
    """Variables, values and answers; the query too, since in 30 assignments all five variables occur, almost surely."""
    task, size = VariableAssignment(5, 20, 30), 4000
    ids = np.stack([sample["input_ids"].numpy() for sample in task.dataset(0, size).__getitems__(range(size))])
    for column, first, count in ((1, 1, 5), (2, 6, 20), (-2, 1, 5), (-1, 6, 20)):
        share = np.bincount(ids[:, column] - first, minlength=count) / size
        spread = (1 / count * (1 - 1 / count) / size) ** 0.5
        assert np.abs(share - 1 / count).max() < 4.5 * spread


def test_the_query_is_uniform_over_the_assigned_variables():
    """With few assignments some variables are missing; each of those present must be asked for equally often."""
    task, size = VariableAssignment(3, 2, 2), 6000
    ids = np.stack([sample["input_ids"].numpy() for sample in task.dataset(1, size).__getitems__(range(size))])
    two = ids[ids[:, 1] != ids[:, 3]]
    assert abs((two[:, -2] == two[:, 1]).mean() - 0.5) < 4.5 * 0.5 / len(two) ** 0.5
