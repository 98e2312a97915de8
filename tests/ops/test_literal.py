"""The operator is the paper's: its pseudo-code typed in, and its definition element by element."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.ops import selective_attention
from selattn.ops.backends import dispatch
from tests.ops.cases import BACKENDS, SHORT, attend, cases, examples, returns
from tests.ops.literal import definition, pseudo_code


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 2, 3, 63, 97, 111, 129, 300])
def test_equals_the_pseudo_code(n, backend):
    q, k, v = normal(2, 3, n, 16), normal(2, 3, n, 16), normal(2, 3, n, 16)
    want, F = pseudo_code(q, k, v)
    got = attend(q, k, v, **returns(backend), tolerance=0.0, backend=backend)
    assert_close(got.output, want, rtol=0, atol=1e-12)
    assert_close(got.memory[:, 0], torch.arange(1, n + 1) - F.clamp(max=1).sum(-1), rtol=0, atol=1e-12)
    if backend != "cpu":
        assert_close(got.f[:, 0], F, rtol=0, atol=1e-12)
    assert_close(
        selective_attention(q, k, v, kernel_options={"tolerance": 0.0}, backend=backend), want, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("n", "size", "value_size"),
    [(111, 16, 16), (33, 1, 1), (33, 1, 5), (33, 5, 1), (33, 7, 80), (33, 65, 33), (33, 128, 128), (33, 1024, 16)],
)
def test_gradients_are_those_of_the_pseudo_code(n, size, value_size, backend):
    """With heads of any size."""
    leaves = [normal(2, 3, n, d).requires_grad_() for d in (size, size, value_size)]
    want, F = pseudo_code(*leaves)
    M = torch.arange(1, n + 1) - F.clamp(max=1).sum(-1)
    got = attend(*leaves, **returns(backend, "f", "memory"), tolerance=0.0, backend=backend)
    pairs = [(got.output, want), (got.memory[:, 0], M), *([] if got.f is None else [(got.f[:, 0], F)])]
    upstream = [torch.randn_like(want) for _, want in pairs]
    got, want = zip(*pairs, strict=True)
    assert_close(got, want, rtol=0, atol=1e-11)
    assert_close(*(torch.autograd.grad(x, leaves, upstream) for x in (got, want)), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
def test_x_transformers_agrees_on_full_sequences(backend):
    """The public version that is right: a second opinion, gradients included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers.attend import selective_attn
    q, k, v = (normal(2, 2, 9, 4).requires_grad_() for _ in range(3))
    logits = (q @ k.mT / 2).masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -torch.inf)
    found = (torch.softmax(selective_attn(logits), -1) @ v, selective_attention(q, k, v, backend=backend))
    assert_close(*found, rtol=0, atol=1e-12)
    upstream = normal(2, 2, 9, 4)
    assert_close(*(torch.autograd.grad(x, (q, k, v), upstream) for x in found), rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_evicted_key_does_not_come_back(backend):
    """Top-k taken afresh in each row, as other versions do it, hides a key in one row and shows it in the next."""
    q, k, v = normal(2, 2, 9, 4), normal(2, 2, 9, 4), torch.zeros(2, 2, 9, 4, dtype=torch.float64)
    v[:, :, 2] = 1.0  # the output is the weight of that key
    until = torch.full((2, 9), 9).index_fill(1, torch.tensor([2]), 5)
    got = selective_attention(q, k, v, visible_until=until, backend=backend)
    assert (got[:, :, 2:5] > 0).all()
    assert (got[:, :, 5:] == 0).all()


def test_the_definition_is_the_pseudo_code():
    """The two forms that everything else is held to agree where both can speak."""
    q, k, v = normal(2, 2, 9, 3), normal(2, 2, 9, 3), normal(2, 2, 9, 3)
    want, F = pseudo_code(q, k, v)
    got = definition(q, k, v)
    assert_close(got.output, want, rtol=0, atol=1e-13)
    assert_close(got.f[:, 0], F, rtol=0, atol=1e-13)
    assert F.max() > 1


@pytest.mark.parametrize("backend", BACKENDS)
@examples(4)
@given(data=st.data())
def test_equals_the_definition(backend, data):
    """With every switch and every kind of mask at once."""
    case = data.draw(cases(SHORT, all_returns=True, backend=backend))
    weights = backend == "reference"
    if dispatch.BACKENDS[backend].refusal(case.request()):
        return
    got, want = case.result(backend, wanted=["weights"] * weights), definition(**case.definition())
    for name in ("output", *returns(backend)["wanted"], *["weights"] * weights):
        assert_close(getattr(got, name), getattr(want, name), rtol=1e-10, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
