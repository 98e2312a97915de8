"""Heads that share: keys and values (GQA, MQA), and a selecting head."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.ops import Selection, selective_attention
from tests.ops.cases import BACKENDS, attend, examples, returns
from tests.ops.literal import pseudo_code

LENGTHS = st.sampled_from((1, 2, 7, 33))


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def assert_same_with_gradients(got, want, leaves):
    """Both results, and the gradients of the leaves under one random upstream gradient."""
    got, want = ([x for x in results if x is not None] for results in (got, want))
    upstream = [torch.randn_like(x) for x in want]
    assert_close(got, want, rtol=0, atol=1e-11)
    got, want = (torch.autograd.grad(x, leaves, upstream, materialize_grads=True) for x in (got, want))
    assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@examples(1)
@given(groups=st.integers(1, 3), shared=st.integers(2, 4), n=LENGTHS, data=st.data())
def test_grouped_heads_are_the_repeated_heads(backend, groups, shared, n, data):
    """MQA is groups = 1. A repeated head's gradient is the sum of its copies'."""
    heads = groups * shared
    head = data.draw(st.integers(0, heads - 1))
    leaves = q, k, v = [normal(2, h, n, d).requires_grad_() for h, d in ((heads, 5), (groups, 5), (groups, 3))]
    until = torch.randint(0, 2 * n + 1, (2, groups, n))
    options = {"selection": Selection(head), **returns(backend, "f", "memory"), "tolerance": 0.0, "backend": backend}
    got = attend(q, k, v, visible_until=until, enable_gqa=True, **options)
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    until = until.repeat_interleave(shared, 1)
    want = attend(q, k, v, visible_until=until, **options)
    assert_same_with_gradients(got[:3], want[:3], leaves)


@pytest.mark.parametrize("backend", BACKENDS)
@examples(1)
@given(masks=st.integers(2, 3), size=st.integers(1, 3), grouped=st.booleans(), n=LENGTHS, data=st.data())
def test_each_selection_mask_is_its_group_alone(backend, masks, size, grouped, n, data):
    """A group alone with its selecting head, which may stand outside of it and then adds no output."""
    heads = masks * size
    chosen = data.draw(st.tuples(*[st.integers(0, heads - 1)] * masks))
    kv = 1 if grouped else heads
    leaves = q, k, v = [normal(2, h, n, d).requires_grad_() for h, d in ((heads, 5), (kv, 5), (kv, 3))]
    options = {**returns(backend, "f", "memory"), "tolerance": 0.0, "backend": backend, "enable_gqa": grouped}
    got = attend(q, k, v, selection=Selection(chosen), **options)
    parts = []
    for group, head in enumerate(chosen):
        members = [head, *range(group * size, (group + 1) * size)]
        keys, values = (k, v) if grouped else (k[:, members], v[:, members])
        alone = attend(q[:, members], keys, values, **options)
        parts.append((alone.output[:, 1:], alone.f, alone.memory))
    want = tuple(None if x[0] is None else torch.cat(x, 1) for x in zip(*parts, strict=True))
    assert_same_with_gradients(got[:3], want, leaves)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_mask_named_twice_is_one_mask(backend):
    leaves = [normal(1, 4, 7, 3).requires_grad_() for _ in range(3)]
    got = selective_attention(*leaves, selection=Selection((2, 2)), backend=backend)
    want = selective_attention(*leaves, selection=Selection(2), backend=backend)
    assert_same_with_gradients((got,), (want,), leaves)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("size", "value_size"), [(1, 1), (1, 5), (3, 3), (5, 1), (7, 80), (65, 33), (128, 128), (1024, 16)]
)
def test_any_head_size(size, value_size, backend):
    leaves = [normal(2, 2, 33, d).requires_grad_() for d in (size, size, value_size)]
    got = attend(*leaves, **returns(backend, "f", "memory"), tolerance=0.0, backend=backend)
    want, F = pseudo_code(*leaves)
    M = torch.arange(1, 34) - F.clamp(max=1).sum(-1)
    want = (want, None if backend == "cpu" else F.unsqueeze(1), M.unsqueeze(1))
    assert_same_with_gradients(got[:3], want, leaves)
