"""Real bytes: what can be reached from a cache, and what a long prompt makes on its way into it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selattn.cache import POLICIES, SelectiveCache, SlotLayer, attend, make_policy
from selattn.ops import Selection
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules
from tests.ops.test_memory_use import Meter, meters_inside

B, H, G, D = 3, 8, 4, 64
BUDGETS = (8, 24, 16)
KINDS = {"standard": Rules(), "selective": Rules(Selection()), "two masks": Rules(Selection((0, 1)))}


def tokens(count, dtype=torch.float32, batch=B):
    return Tokens(*(torch.randn(batch, heads, count, D, dtype=torch.float32).to(dtype) for heads in (H, G, G)))


def bytes_of(root):
    """Of all tensors that can be reached, by their whole storages: a view of something large is large."""
    todo, seen, storages = [root], set(), {}
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, type):
            continue
        seen.add(id(x))
        if isinstance(x, torch.Tensor):
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        elif isinstance(x, dict):
            todo += [*x.keys(), *x.values()]
        elif isinstance(x, list | tuple | set):
            todo += x
        elif hasattr(x, "__dict__"):
            todo += vars(x).values()
    return sum(storages.values())


def run(cache, new, rules):
    for layer in cache.layers:
        attend(layer, new, rules)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["standard", "selective"])
def test_bytes_are_keys_and_values_of_the_budgets_and_less_than_5_percent(kind, policy, dtype):
    cache, rules = SelectiveCache(3, BUDGETS, policy), KINDS[kind]
    run(cache, tokens(40, dtype), rules)
    for _ in range(3):
        run(cache, tokens(1, dtype), rules)
    paid = 2 * B * G * D * sum(BUDGETS) * dtype.itemsize
    assert paid < bytes_of(cache) < 1.05 * paid
    assert cache.nbytes() == bytes_of(cache)
    assert cache.full_nbytes() == 2 * B * G * D * 43 * 3 * dtype.itemsize


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_storage_does_not_grow(kind, policy):
    cache, rules = SelectiveCache(1, 8, policy), KINDS[kind]
    run(cache, tokens(3), rules)
    layer = cache.layers[0]
    begin, pointer = bytes_of(cache), layer.storage.keys.data_ptr()
    for count in (1, 1, 30, 2, *[1] * 60):
        run(cache, tokens(count), rules)
        assert bytes_of(cache) == begin
        assert layer.storage.keys.data_ptr() == pointer  # nor is it copied


@pytest.mark.parametrize("policy", ["selective", "h2o"])
def test_a_draft_needs_more_until_it_is_accepted(policy):
    cache, rules = SelectiveCache(2, 8, policy), KINDS["selective"]
    run(cache, tokens(20), rules)
    begin = bytes_of(cache)
    cache.activate_past_recording()
    run(cache, tokens(5), rules)
    assert bytes_of(cache) > begin
    cache.crop(-2)
    assert bytes_of(cache) == begin


@pytest.mark.parametrize("budget", [None, 200, 2**31 - 1])
def test_storage_grows_with_the_text_and_is_never_much_larger(budget):
    layer, rules, sizes = SlotLayer(budget, make_policy("selective")), KINDS["selective"], []
    for count in range(1, 301):
        attend(layer, tokens(1, batch=1), rules)
        kept = min(count, budget or count)
        assert layer.keys.shape[2] == kept
        assert kept <= layer.storage.slots <= min(kept + max(8, kept // 8), budget or count + 99)
        sizes.append(layer.storage.slots)
    assert len(set(sizes)) <= 25  # the tokens are copied a few times, not 300
    assert bytes_of(layer) == sum(x.nbytes for x in layer.tensors().values())


@given(st.integers(1, 60), st.integers(0, 3), st.sampled_from((None, 40, 10**9)))
def test_a_prompt_gets_what_it_needs_and_little_more(count, steps, budget):
    """Beside a cache that holds the keys and values of the text and nothing else; padding needs no room."""
    layer, rules = SlotLayer(budget, make_policy("selective")), KINDS["selective"]
    real = torch.arange(2 * count) >= torch.tensor([[count], [count + count // 2]])
    attend(layer, tokens(2 * count, batch=2)._replace(real=real), rules)
    for _ in range(steps):
        attend(layer, tokens(1, batch=2), rules)
    kept = min(count + steps, budget or count + steps)
    plain = 2 * 2 * G * D * 4
    assert bytes_of(layer) < 1.05 * plain * (kept + 8 + kept // 8)


def peak(count, budget, policy="selective", kind="selective"):
    """Bytes that live at once while a prompt goes through a layer, inside and outside of the operators.

    In plain PyTorch, whose memory can be metered; the compiled library holds less.
    """
    layer, prompt = SlotLayer(budget, make_policy(policy)), tokens(count, batch=1)
    with Meter() as outside, meters_inside() as inside:
        attend(layer, prompt, KINDS[kind], backend="chunked")
    assert outside.operations > 50
    return outside.peak + max(meter.peak for meter in inside)


LENGTHS = [(1024, 2048), pytest.param((1024, 4096), marks=pytest.mark.slow)]  # several pieces of queries, each


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("policy", [pytest.param(x, marks=[pytest.mark.slow] * (x == "tova")) for x in POLICIES])
def test_the_peak_of_a_long_prompt_follows_the_budget_and_the_piece(policy, lengths):
    short, long = (peak(count, 64, policy) for count in lengths)
    output = H * D * 4  # of one token, which is kept twice while the pieces are joined
    more = lengths[1] - lengths[0]
    assert long - short <= 2.1 * output * more < (lengths[1] ** 2 - lengths[0] ** 2) * 4


def test_the_peak_grows_with_the_budget():
    """And not faster: a piece of 512 queries and 1,024 kept tokens, instead of 64."""
    small, large = peak(1280, 64), peak(1280, 1024)
    assert 1.2 * small < large < (512 + 1024) / (512 + 64) * small


def test_the_peak_of_a_standard_model_too():
    assert peak(2048, 64, kind="standard") - peak(1024, 64, kind="standard") <= 2.1 * H * D * 4 * 1024
