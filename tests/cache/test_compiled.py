"""What the library does for the cache equals plain PyTorch: the eviction order from queries and keys, and a step."""

import dataclasses
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.cache import POLICIES, SlotLayer, Threshold, attend, evictions, make_policy
from selattn.errors import SelattnError
from selattn.ops import Selection, Sequences
from selattn.ops.attention import attend_whole
from selattn.ops.backends import cpu_cache, plain_cache
from selattn.ops.request import NOTHING, Tokens
from selattn.ops.rules import Rules
from tests.cache.cases import Distances

EVICTING = [*POLICIES, "selective-per-head", "tova-per-head"]
NAMES = [*EVICTING, "none"]
# Of 4 heads: which select, each for its group; or how many masks a form of its own makes.
HEADS = st.integers(0, 3) | st.tuples(*[st.integers(0, 3)] * 2) | st.tuples(*[st.integers(0, 3)] * 4) | st.just((0, 2))
FORMS = st.sampled_from((0, 0, 1, 2, 4))


@st.composite
def rules(draw):
    selection = None
    if draw(st.booleans()):
        names = ("relu", "protect_first", "protect_self", "shift")
        selection = Selection(draw(HEADS), **{name: draw(st.booleans()) for name in names})
    window = draw(st.sampled_from((None, 1, 3, 9)))
    softcap = draw(st.sampled_from((None, None, 1.5)))
    bias = draw(
        st.none() | st.builds(Distances, st.sampled_from((1, 4)), st.integers(0, 99), st.sampled_from((0.0, 0.2)))
    )
    return Rules(
        selection,
        draw(st.sampled_from((1.0, 0.3))),
        window,
        scale=draw(st.sampled_from((None, 0.5))),
        softcap=softcap,
        bias=bias,
    )


def with_form(given_rules, masks):
    """The rules, if a form selects in the place of a head; and how many masks it has, none in a standard model."""
    if given_rules.selection is None or not masks:
        return given_rules, 0
    return given_rules._replace(selection=dataclasses.replace(given_rules.selection, head=0)), masks


def tokens(seed, batch, count, dtype=torch.float64, groups=2, size=5, value_size=3, masks=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(heads, features):
        drawn = torch.randn(batch, count, heads, features, generator=generator, dtype=torch.float64)
        return drawn.to(dtype).transpose(1, 2)  # rows that are not neighbours, as a model has them

    found = Tokens(normal(4, size), normal(groups, size), normal(groups, value_size))
    return found if not masks else found._replace(selection_query=normal(masks, 6), selection_key=normal(masks, 6))


def pruned(given_tokens, sequences, rules, budget, policy, backend):
    order = evictions(given_tokens, sequences, rules, budget, policy, backend)
    return attend_whole(given_tokens, sequences, rules, NOTHING, backend, order)


@pytest.mark.parametrize("name", EVICTING)
@given(rules(), st.integers(2, 12), st.integers(1, 40), st.integers(0, 10_000), st.booleans(), FORMS)
def test_a_whole_forward_with_a_budget(name, rules, budget, count, seed, packed, masks):
    rules, masks = with_form(rules, masks)
    given_tokens, sequences = tokens(seed, 2, count, masks=masks), None
    if packed:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, (2, count), generator=generator).cumsum(-1) // 7
        sequences = Sequences.from_documents(ids, torch.arange(count) >= torch.tensor([[0], [count // 3]]))
    got, want = (
        pruned(given_tokens, sequences, rules, budget, make_policy(name), backend) for backend in ("auto", "reference")
    )
    assert torch.equal(got.evicted_at, want.evicted_at)
    assert_close(got.output, want.output, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(rules(), st.integers(2, 9), st.integers(0, 10_000), st.sampled_from((1, 2, 4)), FORMS)
def test_steps_of_decoding(name, rules, budget, seed, groups, masks):
    rules, masks = with_form(rules, masks)
    fast, slow = (SlotLayer(None if name == "none" else budget, make_policy(name)) for _ in range(2))
    for step in range(25):
        new = tokens(seed + 100_000 * step, 3, 1, groups=groups, masks=masks)
        got = attend(fast, new, rules).output
        want = attend(slow, new, rules, backend="reference").output
        assert_close(got, want, rtol=1e-9, atol=1e-9)
        for key, x in slow.tensors().items():
            assert_close(fast.tensors()[key], x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value_size", [64, 72, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "masks"), [("selective", 0), ("selective-per-head", 2)])
def test_steps_in_other_types(dtype, value_size, name, masks):
    """Sizes that fill vectors or not, values summed in registers or not, more slots than one thread is given."""
    fast, slow, rules = *(SlotLayer(300, make_policy(name)) for _ in range(2)), Rules(Selection())
    prompt = tokens(0, 4, 290, dtype, size=64, value_size=value_size, masks=masks)
    for layer in (fast, slow):
        attend(layer, prompt, rules)
    for step in range(20):
        new = tokens(1 + step, 4, 1, dtype, size=64, value_size=value_size, masks=masks)
        got = attend(fast, new, rules).output
        want = attend(slow, new, rules, backend="reference").output
        near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        assert_close(got, want, **near)
    assert torch.equal(fast.position, slow.position)


@pytest.mark.parametrize("policy", ["selective", "selective-per-head"])
@pytest.mark.parametrize("masks", [0, 2])
@pytest.mark.parametrize(
    "rules", [Rules(Selection()), Rules(Selection(), softcap=2.0, bias=Distances(4, 0, 0.1))], ids=str
)
def test_what_the_library_does_itself(rules, masks, policy):
    """None of these goes through Python: a form, several masks, an order for each head, soft cap and bias."""
    if policy == "selective-per-head" and not masks:  # a mask for each of the two key-value heads
        rules = rules._replace(selection=Selection((1, 2)))
    layer = SlotLayer(8, make_policy(policy))
    with mock.patch.object(cpu_cache, "step", wraps=cpu_cache.step) as step:
        attend(layer, tokens(0, 1, 1, masks=masks), rules)
    assert step.called
    strips = mock.patch.object(plain_cache, "order", side_effect=AssertionError("the order is made in Python"))
    with strips, mock.patch.object(cpu_cache, "order", wraps=cpu_cache.order) as order:
        evictions(tokens(0, 1, 20, masks=masks), None, rules, 8, make_policy(policy))
    assert order.called


@pytest.mark.parametrize("policy", ["h2o", "tova", "tova-per-head", "window+4"])
def test_scores_are_kept_by_the_library(policy):
    """What an unchanged model evicts by takes no step in Python."""
    layer = SlotLayer(8, make_policy(policy))
    with mock.patch.object(plain_cache, "step", side_effect=AssertionError("the step is made in Python")):
        for step in range(12):
            attend(layer, tokens(step, 2, 1), Rules(None))


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_a_backend_that_is_asked_for_is_obeyed(backend):
    """In the eviction order and in decoding: the library is not called."""
    refuse = mock.patch.multiple(cpu_cache, call_library=mock.Mock(side_effect=AssertionError("the library ran")))
    rules = Rules(Selection())
    with refuse, mock.patch.object(cpu_cache, "step", side_effect=AssertionError("the library ran")):
        layer = SlotLayer(8, make_policy("selective"))
        attend(layer, tokens(0, 1, 12), rules, backend=backend)
        attend(layer, tokens(1, 1, 1), rules, backend=backend)
        pruned(tokens(0, 1, 20), None, rules, 8, make_policy("selective"), backend)


def test_a_backend_says_what_it_cannot_do():
    layer = SlotLayer(8, Threshold(1.0))
    with pytest.raises(SelattnError, match="backend 'cpu' cannot do this: a step of decoding: it does not know the"):
        attend(layer, tokens(0, 1, 1), Rules(Selection()), backend="cpu")
    with pytest.raises(SelattnError, match="backend 'cpu' cannot do this: the eviction order: it does not know the"):
        evictions(tokens(0, 1, 20), None, Rules(Selection()), 8, Threshold(1.0), "cpu")
