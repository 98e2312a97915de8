"""Drafts: tokens that are taken back leave no trace, whatever they had selected and evicted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.cache import POLICIES, SelectiveCache, SlotLayer, attend
from selattn.errors import SelattnError
from selattn.ops.request import Tokens
from tests.cache.cases import attend_module, cases, positions, some_case

each_policy = pytest.mark.parametrize("policy", POLICIES)
rounds = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any), max_size=8)


def junk(tokens, count, seed):
    """Other tokens of the same shapes, which will be refused."""
    chance = torch.Generator().manual_seed(seed)

    def other(x):
        if x is None:
            return None
        return 3 * torch.randn(*x.shape[:2], count, x.shape[3], generator=chance, dtype=x.dtype)

    q, k, v, _, sq, sk = tokens
    return Tokens(other(q), other(k), other(v), None, other(sq), other(sk))


def join(*parts):
    """Tokens after tokens."""
    real = [torch.ones(x.key.shape[0], x.key.shape[2], dtype=torch.bool) if x.real is None else x.real for x in parts]
    columns = zip(*((x[:3] + x[4:]) for x in parts), strict=True)
    q, k, v, sq, sk = (None if column[0] is None else torch.cat(column, -2) for column in columns)
    return Tokens(q, k, v, torch.cat(real, -1), sq, sk)


@each_policy
@given(st.data())
def test_what_is_taken_back_leaves_no_trace(policy, data):
    """Rounds of accepted tokens with junk after them: the same as if there had been no draft."""
    case = data.draw(cases((policy,)))
    layer = case.layer()
    if data.draw(st.booleans()):
        case.budget = max(2, case.size)
        layer = SlotLayer(None, case.make_policy())  # which keeps everything, and so must a budget of all
    want = case.simulate()
    layer.activate_past_recording()
    at, outputs = 0, []
    for seed, (accepted, refused) in enumerate([*data.draw(rounds), (case.size, 2)]):
        accepted = min(accepted, case.size - at)
        drafted = join(case.cut(at, at + accepted), junk(case.tokens, refused, seed))
        step = data.draw(st.sampled_from((1, 3, 50)))  # a draft may come in several calls
        outputs += [
            attend(layer, drafted.cut(i, i + step), case.rules).output for i in range(0, accepted + refused, step)
        ]
        layer.crop(-refused)
        keep = sum(x.shape[2] for x in outputs) - refused
        outputs, at = [torch.cat(outputs, -2)[:, :, :keep]] if outputs else [], at + accepted
        assert layer.get_seq_length() == at
        assert layer.entries is None
        for b, row in enumerate(case.documents):
            if at and row[at - 1] is not None:
                assert positions(layer)[b] == want.kept[b][at - 1]
    real = case.real[:, None, :, None]
    assert_close(outputs[0] * real, want.output * real, rtol=0, atol=1e-9)


CHANGES = {
    "reorder": (lambda layer, index: layer.reorder_cache(index), lambda x, index: x[index]),
    "select": (lambda layer, index: layer.batch_select_indices(index[:2]), lambda x, index: x[index[:2]]),
    "repeat": (lambda layer, _: layer.batch_repeat_interleave(2), lambda x, _: x.repeat_interleave(2, 0)),
}


@each_policy
@pytest.mark.parametrize("drafting", [False, True], ids=["decoding", "drafting"])
@pytest.mark.parametrize("change", CHANGES)
def test_rows_of_the_batch_are_changed_at_any_time(change, drafting, policy):
    of_layer, of_tensor = CHANGES[change]
    case, index = some_case(policy, batch=3), torch.tensor([2, 0, 0])
    layer = case.layer()
    if drafting:
        layer.activate_past_recording()
    attend(layer, case.cut(0, 7), case.rules)
    if drafting:
        attend(layer, junk(case.tokens, 3, 0), case.rules)
    of_layer(layer, index)
    if drafting:
        layer.crop(-3)
    case.tokens = Tokens(*(of_tensor(x, index) for x in case.tokens[:3]))
    rest = [attend(layer, Tokens(*case.tokens[:3]).cut(i, i + 1), case.rules).output for i in range(7, case.size)]
    assert_close(
        torch.cat(rest, -2),
        case.pruned().output[:, :, 7:],
        rtol=0,
        atol=1e-9,
    )


def test_a_long_prompt_can_be_taken_back_as_far_as_a_draft_reaches(monkeypatch):
    """Before that, evictions are final, and memory follows the budget."""
    monkeypatch.setattr(attend_module, "PIECE", 8)
    monkeypatch.setattr(attend_module, "DRAFT", 4)
    case = some_case(size=40)
    layers = [case.layer() for _ in range(6)]
    for removed, layer in enumerate(layers):
        layer.activate_past_recording()
        attend(layer, case.cut(0, 30), case.rules)
        assert layer.entries.size == case.budget + 4
        if removed == 5:
            with pytest.raises(SelattnError, match=r"^only the last 4 tokens can be taken back, not 5$"):
                layer.crop(-5)
            continue
        layer.crop(-removed)
        rest = attend(layer, case.cut(30 - removed, 40), case.rules).output
        assert_close(rest, case.whole().output[:, :, 30 - removed :], rtol=0, atol=1e-9)


def test_errors():
    case, layer = some_case(), some_case().layer()
    layer.crop(0)
    attend(layer, case.cut(0, 6), case.rules)
    layer.crop(0)
    with pytest.raises(SelattnError, match=r"^what was evicted is gone: call activate_past_recording\(\) before"):
        layer.crop(-1)
    layer.activate_past_recording()
    attend(layer, case.cut(6, 8), case.rules)
    with pytest.raises(SelattnError, match=r"^only the last 2 tokens can be taken back, not 3$"):
        layer.crop(-3)
    layer.crop(-1)
    with pytest.raises(SelattnError):
        layer.crop(-1)  # a crop makes final what it leaves
    assert layer.get_seq_length() == 7


def test_a_whole_cache():
    """All layers, by the calls of transformers."""
    case, cache = some_case(), SelectiveCache(2, [4, 6])
    cache.activate_past_recording()
    assert cache.is_croppable
    assert cache.is_recording_past(1)
    for layer in cache.layers:
        attend(layer, case.cut(0, 8), case.rules)
    cache.crop(-3)
    assert cache.get_seq_length() == 5
    assert [len(positions(layer)[0][0]) for layer in cache.layers] == [4, 5]
    cache.reorder_cache(torch.tensor([1, 1]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3, 2]))
    assert all(len(layer.keys) == len(layer.length) == 3 for layer in cache.layers)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.nbytes() == 0
