"""The share of the teacher in the loss, against its definition: value, gradient, and what is there at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from selattn.conversion.trainer import kl_less_ce


def literal(logits, teacher, targets):
    """KL(teacher || student) - CE(student) over the tokens that have a target, by the whole matrices."""
    there = targets >= 0
    student, wanted = logits[there].log_softmax(-1), teacher[there].log_softmax(-1)
    kl = functional.kl_div(student, wanted, reduction="sum", log_target=True)
    return kl - functional.nll_loss(student, targets[there], reduction="sum")


@given(
    rows=st.integers(1, 3),
    length=st.integers(1, 9),
    vocabulary=st.integers(2, 11),
    chunk=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_value_and_gradient(rows, length, vocabulary, chunk, seed):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, length, vocabulary, generator=draw, dtype=torch.float64, requires_grad=True)
    states, matrix = (
        torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((rows, length, 5), (5, vocabulary))
    )
    targets = torch.randint(-1, vocabulary, (rows, length), generator=draw)
    targets[targets < 0] = -100
    found = kl_less_ce(logits, states, lambda x: x @ matrix, targets, chunk)
    want = literal(logits, states @ matrix, targets)
    assert found.item() == pytest.approx(want.item(), abs=1e-10)
    ours, theirs = (torch.autograd.grad(3 * each, logits)[0] for each in (found, want))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_teachers_logits_are_never_there_whole():
    sizes = []

    def head(states):
        sizes.append(len(states))
        return states.repeat(1, 4)

    logits = torch.randn(2, 50, 12, requires_grad=True)
    targets = torch.randint(12, (2, 50))
    targets[0, :20] = -100  # nothing is computed where nothing is predicted
    kl_less_ce(logits, torch.randn(2, 50, 3), head, targets, 10).backward()
    assert sizes == [10] * 16
    assert logits.grad[0, :20].abs().sum() == 0


def test_in_low_precision_the_sums_are_not():
    draw = torch.Generator().manual_seed(0)
    logits, teacher = (torch.randn(1, 400, 30, generator=draw) for _ in range(2))
    targets = torch.randint(30, (1, 400), generator=draw)
    found = kl_less_ce(logits.bfloat16(), teacher.bfloat16(), lambda x: x, targets, 7)
    want = literal(logits.bfloat16().double(), teacher.bfloat16().double(), targets)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(want.item(), rel=1e-5)
