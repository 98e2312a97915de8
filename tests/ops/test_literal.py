"""The operator is the paper's: its pseudo-code typed in, and its definition element by element."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.ops import Selection, causal_attention, selective_attention
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
def test_gradients_are_those_of_the_pseudo_code(backend):
    n = 111
    inputs = [normal(2, 3, n, 16).requires_grad_() for _ in range(3)]
    want, F = pseudo_code(*inputs)
    M = torch.arange(1, n + 1) - F.clamp(max=1).sum(-1)
    got = attend(*inputs, **returns(backend, "f", "memory"), tolerance=0.0, backend=backend)
    upstream = [torch.randn_like(x) for x in (want, M, F)[: 2 if backend == "cpu" else 3]]
    want = torch.autograd.grad((want, M, F)[: len(upstream)], inputs, upstream)
    got = (got.output, got.memory[:, 0]) if backend == "cpu" else (got.output, got.memory[:, 0], got.f[:, 0])
    got = torch.autograd.grad(got, inputs, upstream)
    assert_close(got, want, rtol=1e-11, atol=1e-12)


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("switch", ["relu", "protect_first", "protect_self", "shift"])
def test_each_switch_alone(switch, backend):
    """Each changes the result, and changes it into what the definition says."""
    q, k, v = normal(1, 2, 6, 3), normal(1, 2, 6, 3), normal(1, 2, 6, 3)
    got = attend(q, k, v, selection=Selection(**{switch: False}), **returns(backend), backend=backend)
    want = definition(q, k, v, **{switch: False})
    for name in ("output", "memory", "final_f", *["f"] * (backend != "cpu")):
        assert_close(getattr(got, name), getattr(want, name), rtol=0, atol=1e-12)
    assert (want.output - definition(q, k, v).output).abs().max() > 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_strength_is_standard_attention(backend):
    q, k, v = normal(1, 2, 40, 3), normal(1, 2, 40, 3), normal(1, 2, 40, 3)
    got = selective_attention(q, k, v, strength=0.0, backend=backend)
    assert_close(got, causal_attention(q, k, v), rtol=0, atol=1e-12)
    assert (got - selective_attention(q, k, v)).abs().max() > 0.1
