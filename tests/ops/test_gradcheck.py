"""Gradients by finite differences, for every backend, away from the kinks of relu and of min(F, tau)."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from selattn.ops import Selection, Sequences, causal_attention
from tests.ops.cases import BACKENDS, NAMES, Case
from tests.ops.literal import definition

N = 5
PACKED = [[0, 0, 0, 1, 1], [None, 0, 0, 0, None]]
SWITCHES = {
    "default": {},
    "no relu": {"selection": Selection(relu=False)},
    "nothing protected, no shift": {"selection": Selection(protect_first=False, protect_self=False, shift=False)},
    "two masks": {"selection": Selection(head=(1, 0))},
    "window": {"window": 2},
    "soft cap": {"softcap": 1.5},
    "bias": {"bias": True},
    "soft cap and bias": {"softcap": 1.5, "bias": True},
    "initial F": {"past": 2},
    "separate": {"separate": True},
    "separate, initial F": {"separate": True, "past": 2},
    "grouped": {"groups": 1, "enable_gqa": True},
    "packed and padded": {"batch": 2, "documents": PACKED},
    "evicted": {"batch": 2, "visible_until": torch.tensor([[9, 9, 3, 4, 9], [9, 2, 9, 9, 5]])},
    "half strength": {"strength": 0.5},
}


def build(seed, past=0, batch=1, groups=2, bias=False, separate=False, documents=None, **options):
    chance = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=chance, dtype=torch.float64)

    M = N + past
    inputs = {
        "query": 2 * normal(batch, 2, N, 3),
        "key": normal(batch, groups, M, 3),
        "value": normal(batch, groups, M, 2),
    }
    if bias:
        inputs["attn_mask"] = normal(1, 2, N, 1)
    if separate:
        inputs |= {"selection_query": 2 * normal(batch, 1, N, 2), "selection_key": normal(batch, 1, M, 2)}
    if past:
        inputs["initial_f"] = normal(batch, 1, past).abs()
    options = {
        "selection": Selection(),
        "scale": None,
        "softcap": None,
        "window": None,
        "strength": 1.0,
        "tau": 0.5,
    } | options
    if documents:
        ids = torch.tensor([[0 if d is None else d for d in row] for row in documents])
        real = torch.tensor([[d is not None for d in row] for row in documents])
        options["sequences"] = Sequences.from_documents(ids, real)
    options["wanted"] = NAMES[1:]
    return Case(inputs, options, documents, seed, strips=((2, 2), 1))


def distance_to_kinks(case):
    """How far the selecting logits that count are from 0, and F from tau; 0 if F is on one side of tau only."""
    said = case.definition()
    F = definition(**said).f
    sums = definition(**said | {"relu": False, "shift": False}).f
    S = sums.diff(dim=-2, prepend=sums[..., :1, :] * 0)
    if "initial_f" in said:
        S[..., 0, : said["initial_f"].shape[-1]] -= said["initial_f"]
    selected = S.abs()[S.abs() > 1e-12]
    if not F.min() < case.options["tau"] < F.max():
        return 0.0
    return min(selected.min().item(), (F - case.options["tau"]).abs().min().item())


def away_from_kinks(**kind):
    case = next(case for seed in range(200) if distance_to_kinks(case := build(seed, **kind)) > 5e-3)
    for x in case.inputs.values():
        x.requires_grad_()
    return case


def function(case, backend, wanted=NAMES):
    def call(*values):
        got = case.result(backend, dict(zip(case.inputs, values, strict=True)))
        return tuple(getattr(got, name) for name in wanted)

    return call


def runs(kind, backend):
    return backend != "cpu" or kind not in ("initial F", "separate, initial F")


def asked_of(case, backend):
    """The case, and the results that the backend has gradients of."""
    if backend != "cpu":
        return case, NAMES
    return replace(case, options=case.options | {"wanted": ("memory",)}), ("output", "memory")


@pytest.mark.parametrize(("kind", "backend"), [(k, b) for k in SWITCHES for b in BACKENDS if runs(k, b)])
def test_gradients(kind, backend):
    case, wanted = asked_of(away_from_kinks(**SWITCHES[kind]), backend)
    with case.in_strips():
        assert gradcheck(function(case, backend, wanted), tuple(case.inputs.values()), eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_standard_attention(backend):
    inputs = tuple(x.requires_grad_() for x in build(0).inputs.values())
    assert gradcheck(lambda *x: causal_attention(*x, window=3, backend=backend), inputs)


@pytest.mark.parametrize("kind", ["default", "initial F", "separate"])
def test_second_derivative_of_the_reference(kind):
    case = away_from_kinks(**SWITCHES[kind])
    wanted = ("output", "memory") if kind == "default" else ("output",)
    assert gradgradcheck(function(case, "reference", wanted), tuple(case.inputs.values()), atol=1e-5)


def second_derivative(case, backend, name):
    leaves = tuple(case.inputs.values())
    loss = (function(case, backend, [name])(*leaves)[0] ** 2).sum()
    first = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
    return torch.autograd.grad(sum((g**2).sum() for g in first), leaves, materialize_grads=True)


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "chunked") for name in NAMES), ("output", "cpu"), ("memory", "cpu")]
)
def test_a_second_derivative_is_refused(name, backend):
    case, _ = asked_of(away_from_kinks(), backend)
    with pytest.raises(RuntimeError, match=rf"{backend} backend has no second derivative.*backend='reference'"):
        second_derivative(case, backend, name)
