"""What the library does for the cache equals plain PyTorch: the eviction order from queries and keys, and a step."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn import native
from selattn.cache import POLICIES, Rules, SlotLayer, Tokens, attend, compiled, make_policy
from selattn.cache.attend import attend_whole
from selattn.ops import Selection, Sequences

NAMES = [*POLICIES, "none"]


@contextmanager
def in_python():
    """No part of the cache uses the library."""
    with (
        mock.patch.object(compiled, "makes_order", return_value=False),
        mock.patch.object(compiled, "makes_step", return_value=False),
        mock.patch.object(native, "_LIBRARY", None),
    ):
        yield


@st.composite
def rules(draw):
    selection = None
    if draw(st.booleans()):
        names = ("relu", "protect_first", "protect_self", "shift")
        selection = Selection(draw(st.integers(0, 3)), **{name: draw(st.booleans()) for name in names})
    window = draw(st.sampled_from((None, 1, 3, 9)))
    return Rules(selection, draw(st.sampled_from((1.0, 0.3))), window, scale=draw(st.sampled_from((None, 0.5))))


def tokens(seed, batch, count, dtype=torch.float64, groups=2, size=5, value_size=3):
    generator = torch.Generator().manual_seed(seed)

    def normal(heads, features):
        drawn = torch.randn(batch, count, heads, features, generator=generator, dtype=torch.float64)
        return drawn.to(dtype).transpose(1, 2)  # rows that are not neighbours, as a model has them

    return Tokens(normal(4, size), normal(groups, size), normal(groups, value_size))


@pytest.mark.parametrize("name", POLICIES)
@given(rules(), st.integers(2, 12), st.integers(1, 40), st.integers(0, 10_000), st.booleans())
def test_a_whole_forward_with_a_budget(name, rules, budget, count, seed, packed):
    given_tokens, sequences = tokens(seed, 2, count), None
    if packed:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, (2, count), generator=generator).cumsum(-1) // 7
        sequences = Sequences.from_documents(ids, torch.arange(count) >= torch.tensor([[0], [count // 3]]))
    rules = rules._replace(backend="reference")
    got = attend_whole(given_tokens, sequences, rules, budget, make_policy(name))
    with in_python():
        want = attend_whole(given_tokens, sequences, rules, budget, make_policy(name))
    assert_close(got.output, want.output, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(rules(), st.integers(2, 9), st.integers(0, 10_000), st.sampled_from((1, 2, 4)))
def test_steps_of_decoding(name, rules, budget, seed, groups):
    fast, slow = (SlotLayer(None if name == "none" else budget, make_policy(name)) for _ in range(2))
    for step in range(25):
        new = tokens(seed + 100_000 * step, 3, 1, groups=groups)
        got = attend(fast, new, rules).output
        with in_python():
            want = attend(slow, new, rules).output
        assert_close(got, want, rtol=1e-9, atol=1e-9)
        for key, x in slow.tensors().items():
            assert_close(fast.tensors()[key], x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value_size", [64, 72, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_in_other_types(dtype, value_size):
    """Sizes that fill vectors or not, values summed in registers or not, more slots than one thread is given."""
    fast, slow, rules = *(SlotLayer(300, make_policy("selective")) for _ in range(2)), Rules(Selection())
    prompt = tokens(0, 4, 290, dtype, size=64, value_size=value_size)
    for layer in (fast, slow):
        attend(layer, prompt, rules)
    for step in range(20):
        new = tokens(1 + step, 4, 1, dtype, size=64, value_size=value_size)
        got = attend(fast, new, rules).output
        with in_python():
            want = attend(slow, new, rules).output
        near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        assert_close(got, want, **near)
    assert torch.equal(fast.position, slow.position)


def test_a_step_is_packed_as_the_library_reads_it():
    """As many bytes as csrc/cache/structs.h asserts."""
    assert compiled._STEP.size == 37 * 8


def test_what_the_library_does_itself():
    """The usual case does not go through Python."""
    layer, rules = SlotLayer(8, make_policy("selective")), Rules(Selection())
    with mock.patch.object(compiled, "step", wraps=compiled.step) as step:
        attend(layer, tokens(0, 1, 1), rules)
    assert step.called
    with mock.patch.object(compiled, "order_of", wraps=compiled.order_of) as order:
        attend_whole(tokens(0, 1, 20), None, rules, 8, make_policy("selective"))
    assert order.called
