"""Whole = in chunks that continue from an F = one query at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.ops import Selection
from selattn.ops.selection import accumulate, accumulate_backward, step
from tests.ops.cases import (
    BACKENDS,
    STRIPS,
    Case,
    assert_same,
    examples,
    only,
    returns,
    rows,
    selections,
    sequences,
)


def in_chunks(case, sizes, backend):
    """The case's inputs, `sizes` queries at a time: one result for all, put together."""
    N, start, before, parts = case.inputs["query"].shape[2], 0, None, []
    for size in sizes:
        end = start + size
        inputs = {name: x[:, :, :end] for name, x in case.inputs.items() if not name.endswith("query")}
        inputs |= {name: x[:, :, start:end] for name, x in case.inputs.items() if name.endswith("query")}
        options = dict(case.options)
        if case.documents is not None:  # all that is known by then
            options["sequences"] = sequences([row[:end] for row in case.documents])
        if "visible_until" in options:
            options["visible_until"] = options["visible_until"][:, :end]
        got = Case(inputs, options, None, 0, case.strips).result(backend, initial_f=before)
        parts.append({"output": got.output, "memory": got.memory})
        if got.f is not None:
            parts[-1]["f"] = torch.nn.functional.pad(got.f, (0, N - end))
        start, before = end, got.final_f
    return {name: torch.cat([part[name] for part in parts], 2) for name in parts[0]} | {"final_f": before}


@st.composite
def situations(draw, backend):
    """A case, and the sizes of the chunks that it is cut into."""
    long = [100, 1, 97, 2] if backend == "cpu" else [33, 1, 32, 2]
    sizes = draw(st.one_of(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.just(long)))
    seed, N = draw(st.integers(0, 2**31)), sum(sizes)
    chance = torch.Generator().manual_seed(seed)
    shapes = {"query": (4, N, 3), "key": (2, N, 3), "value": (2, N, 4)}
    chosen = draw(selections(4))
    if draw(st.booleans()):
        shapes |= {"selection_query": (len(chosen.heads), N, 2), "selection_key": (len(chosen.heads), N, 2)}
        chosen = Selection(0, chosen.relu, chosen.protect_first, chosen.protect_self, chosen.shift)
    inputs = {name: torch.randn(2, *shape, generator=chance, dtype=torch.float64) for name, shape in shapes.items()}
    documents = draw(st.none() | rows(2, N))
    options = {"selection": chosen, "window": draw(st.none() | st.integers(1, N)), "enable_gqa": True}
    options |= returns(backend)
    options["sequences"] = None if documents is None else sequences(documents)
    if draw(st.booleans()):
        options["visible_until"] = torch.randint(0, 2 * N, (2, N), generator=chance)
    return Case(inputs, options, documents, seed, draw(st.sampled_from(STRIPS))), sizes


@pytest.mark.parametrize("backend", BACKENDS)
@examples(2)
@given(data=st.data())
def test_whole_is_in_chunks_is_step_by_step(backend, data):
    case, sizes = data.draw(situations(backend))
    whole = {name: x for name, x in case.result(backend)._asdict().items() if x is not None}
    assert_same(in_chunks(case, sizes, backend), whole)
    assert_same(in_chunks(case, [1] * sum(sizes), backend), whole)


@pytest.mark.parametrize("backend", only(BACKENDS, "cpu"))
@examples(1)
@given(data=st.data())
def test_gradients_pass_through_initial_and_final_f(backend, data):
    """Backward through all chunks, each F in between included, is backward through the whole."""
    case, sizes = data.draw(situations(backend))
    leaves = [x.requires_grad_() for x in case.inputs.values()]
    whole = {name: x for name, x in case.result(backend)._asdict().items() if x is not None}
    parts = in_chunks(case, sizes, backend)
    upstream = {name: torch.randn_like(x) for name, x in whole.items()}
    upstream["f"] = upstream["f"].tril()  # of keys that a chunk does not know yet there is no F
    with case.in_strips():
        losses = [sum((x[name] * g).sum() for name, g in upstream.items()) for x in (whole, parts)]
        want, got = (torch.autograd.grad(loss, leaves, materialize_grads=True) for loss in losses)
    assert_close(got, want, rtol=1e-9, atol=1e-9)


@examples(2)
@given(n=st.integers(1, 40), m=st.integers(1, 9), shift=st.booleans(), before=st.booleans(), seed=st.integers(0, 999))
def test_f_of_a_sequence_is_the_steps_of_its_queries(n, m, shift, before, seed):
    """The two forms of the definition of F; with no initial F, and in fp64, bit for bit."""
    chance = torch.Generator().manual_seed(seed)
    S = torch.rand(2, n, m, generator=chance, dtype=torch.float64)
    f = torch.rand(2, m, generator=chance, dtype=torch.float64) * before
    F, after = accumulate(S, f if before else None, shift)
    for i in range(n):
        row, f = step(S[:, i], f, shift)
        assert_close(F[:, i], row, rtol=0, atol=1e-13 * before)
    assert_close(after, f, rtol=0, atol=1e-13 * before)


@examples(2)
@given(n=st.integers(1, 9), shift=st.booleans(), ends=st.booleans(), seed=st.integers(0, 999))
def test_backward_of_the_running_sum(n, shift, ends, seed):
    chance = torch.Generator().manual_seed(seed)
    S, dF = (torch.rand(2, n, 3, generator=chance, dtype=torch.float64) for _ in range(2))
    f, d_after = (torch.rand(2, 3, generator=chance, dtype=torch.float64) for _ in range(2))
    F, after = accumulate(S.requires_grad_(), f.requires_grad_(), shift)
    want = torch.autograd.grad((F * dF).sum() + (after * d_after).sum() * ends, (S, f))
    assert_close(accumulate_backward(dF, d_after if ends else None, shift), want, rtol=0, atol=1e-12)
