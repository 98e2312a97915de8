"""One truth: a full forward with budgets, decoding, and no pruning where the budget is large enough."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.cache import POLICIES, SlotLayer, attend
from selattn.errors import SelattnError
from selattn.ops import AuxRequest, Fixed, Selection, causal_attention, selective_attention
from selattn.ops.request import Tokens
from tests.cache.cases import assert_same_run, cases, some_case

each_policy = pytest.mark.parametrize("policy", POLICIES)


@each_policy
@given(st.data())
def test_a_budget_of_the_whole_length_prunes_nothing(policy, data):
    case = data.draw(cases((policy,)))
    case.budget = max(2, case.size + data.draw(st.integers(0, 2)))
    want, real = case.plain(), case.real[:, None, :, None]
    unlimited = SlotLayer(None, case.make_policy())
    for run in (case.whole(), case.one_by_one(), case.pieces(case.size // 2), case.one_by_one(unlimited)):
        assert_close(run.output * real, want * real, rtol=0, atol=1e-9)
        for row, documents in zip(run.kept, case.documents, strict=True):
            if row[-1] is not None and documents[-1] is not None:
                tokens = list(range(sum(d is not None for d in documents)))
                assert all(order == tokens for order in row[-1])


def test_without_a_budget_it_is_the_operator():
    for case in (some_case(), some_case(selection=None, pattern=Fixed(4, 1, "split")), some_case(window=3)):
        q, k, v = case.tokens[:3]
        rules, call = case.rules, {"enable_gqa": True, "window": case.rules.window}
        if rules.selection is None:
            want = causal_attention(q, k, v, pattern=rules.pattern, **call)
        else:
            want = selective_attention(q, k, v, selection=rules.selection, **call)
        assert_close(case.plain(), want, rtol=0, atol=0)
        unlimited = SlotLayer(None, case.make_policy())
        assert_close(case.one_by_one(unlimited).output, want, rtol=0, atol=1e-12)


@each_policy
@given(st.data())
def test_a_dropped_token_never_contributes_again(policy, data):
    """Neither by its value nor by its key, not even with a gradient: it is gone for every later row."""
    case = data.draw(cases((policy,), kinds=("full",)))
    case.tokens = case.tokens._replace(**{n: getattr(case.tokens, n).requires_grad_() for n in ("key", "value")})
    run = case.whole()
    G, shared = case.tokens.key.shape[1], case.tokens.query.shape[1] // case.tokens.key.shape[1]
    for i in range(case.budget, case.size, 3):
        later = run.output[:, :, i:].sin().sum()
        d_key, d_value = torch.autograd.grad(later, case.tokens[1:3], retain_graph=True, materialize_grads=True)
        for b, g, j in itertools.product(range(len(run.kept)), range(G), range(i)):
            held = run.kept[b][i]
            if j not in held[g if len(held) > 1 else 0]:
                assert (d_value[b, g, j] == 0).all()
            if not any(j in order for order in held):  # F of a token that another head keeps goes on to depend on it
                assert (d_key[b, g, j] == 0).all()
    if case.size > case.budget:
        b, g, order = 0, G - 1, -1
        gone = next(j for j in range(case.size) if j not in run.kept[b][-1][order])
        when = next(i for i in range(gone, case.size) if gone not in run.kept[b][i][order])
        value = case.tokens.value.detach().clone()
        value[b, g, gone] = 1e6
        case.tokens = case.tokens._replace(value=value)
        changed = (case.whole().output - run.output)[b, g * shared :].abs().amax((0, 2))
        assert (changed[when:] == 0).all()
        assert changed[gone] > 0 or case.rules.pattern is not None  # while it was there it did contribute


@each_policy
@pytest.mark.parametrize("selection", [None, Selection()], ids=["standard", "selective"])
def test_slots_hold_what_is_kept_and_nothing_else(policy, selection):
    case = some_case(policy, selection=selection)
    layer = case.layer()
    for i in range(case.size):
        attend(layer, case.cut(i, i + 1), case.rules)
        for b, g in itertools.product(range(2), range(2)):
            at = layer.position[b, g if layer.position.shape[1] > 1 else 0]
            filled = at >= 0
            assert filled.sum() == min(i + 1, case.budget)
            for storage, given_ in ((layer.storage.keys, case.tokens.key), (layer.storage.values, case.tokens.value)):
                assert storage.shape[2] == case.budget
                assert torch.equal(storage[b, g, filled], given_[b, g, at[filled]])
    assert layer.get_seq_length() == case.size


@each_policy
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision(policy, dtype):
    """The same tokens are kept as in fp64, and outputs are as near to it as those of the unpruned operator."""
    case = some_case(policy, size=40, budget=9, dtype=dtype)
    low, low_plain, kept_whole = case.one_by_one(), case.plain(), case.whole().kept
    case.tokens = Tokens(*(x.double() for x in case.tokens[:3]))
    exact, exact_plain = case.whole(), case.plain()
    assert low.kept == exact.kept == kept_whole
    assert low.output.dtype == dtype
    allowed = 2 * (low_plain.double() - exact_plain).abs().max()
    assert 0 < (low.output.double() - exact.output).abs().max() <= allowed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_keys_and_values_keep_their_dtype_and_f_is_exact(dtype):
    case = some_case("tova", dtype=dtype)
    layer = case.layer()
    case.pieces(4, 5, 6, layer=layer)
    assert layer.keys.dtype == layer.values.dtype == dtype
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    assert layer.pool.f.dtype == layer.pool.score.dtype == exact


def test_other_results_in_decoding_are_those_of_the_full_forward():
    """F, M_i and the weights of each row: what is kept has the columns of the full forward."""
    case = some_case(budget=20)
    wanted = AuxRequest(f=True, memory=True, weights=True)
    whole = case.pruned(wanted).aux
    layer = case.layer()
    for i in range(case.size):
        row = attend(layer, case.cut(i, i + 1), case.rules, wanted).aux
        for got, want in ((row.f, whole.f), (row.weights, whole.weights)):
            assert_close(got, want[..., i : i + 1, : i + 1], rtol=0, atol=1e-9)
        assert_close(row.memory, whole.memory[..., i : i + 1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("count", [1, 3])
def test_errors(count):
    case, layer = some_case(), some_case().layer()
    attend(layer, case.cut(0, 4), case.rules)
    one = Tokens(*(x[:1] for x in case.cut(4, 4 + count)[:3]))
    wrong = r"^this cache holds a batch of 2, not 1: begin with a new cache, or name the rows with only\(\)$"
    with pytest.raises(SelattnError, match=wrong):
        attend(layer, one, case.rules)
    learned = case.cut(4, 4 + count)
    learned = learned._replace(key=learned.key.requires_grad_())
    with pytest.raises(SelattnError, match=r"^a cache cuts gradients off: pass the whole text in one forward, without"):
        attend(layer, learned, case.rules).output.sum().backward()
    with torch.no_grad():
        assert not attend(layer, learned, case.rules).output.requires_grad


def test_reset_begins_again():
    case = some_case()
    layer = case.layer()
    first = case.one_by_one(layer)
    layer.reset()
    assert layer.get_seq_length() == 0
    assert_same_run(case, case.one_by_one(layer), first)
