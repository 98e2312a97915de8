"""The compiled eviction order is the one in Python, whatever the numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.cache import NEVER, POLICIES, make_policy
from selattn.errors import SelattnError
from selattn.ops import Selection
from selattn.ops.backends import cpu_cache
from selattn.ops.backends.plain_cache import Strip, row_by_row
from selattn.ops.eviction import Order, OrderCall
from selattn.ops.rules import Rules
from selattn.utils import native
from tests.cache.cases import assert_same_run, some_case

NUMBERS = {
    "random": lambda x: x,
    "whole": lambda x: x.round(),  # many ties
    "equal": lambda x: torch.full_like(x, 0.7),
    "huge": lambda x: 1e30 * x,
    "zeros": lambda x: torch.where(x > 0, 0.0, -0.0),
}


@st.composite
def strips(draw, policy, dtype):
    """A strip of queries after entries of which some are gone, some empty; the two parts of one document or of several.

    Heads come in powers of 2: their mean is then the same whether it is divided before it is added up or after.
    """
    chance = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    B, G, shared = draw(st.integers(1, 3)), draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2, 4)))
    H, P = G * shared, G if policy.per_head else 1
    n, past, budget = draw(st.integers(1, 12)), draw(st.integers(0, 12)), draw(st.integers(2, 12))
    masks, M = draw(st.sampled_from([0, 1, H])), n + past

    def numbers(*shape):
        x = 2 * torch.randn(shape, generator=chance, dtype=torch.float64)
        return NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))](x).to(dtype)

    positions = torch.arange(M).repeat(B, 1)
    for row in positions:
        empty, border = draw(st.integers(0, M - 1)), draw(st.integers(0, M))
        row[border:] -= border
        row[:empty] = -1
        row[empty:border] -= empty
    causal = torch.ones(n, M, dtype=torch.bool).tril(past)
    logits = numbers(B, H, n, M).masked_fill(~causal, -torch.inf) if policy.needs_weights else None
    selected = numbers(B, masks, n, M).relu() * causal if masks else None
    gone = torch.rand(B, P, M, generator=chance) < 0.2
    gone[..., past:] = False
    order = Order(
        torch.where(gone, 0, NEVER),
        numbers(B, masks, M).abs() / 100,
        numbers(B, P, M).abs() / 100,
    )
    some_orders = st.integers(0, P - 1).flatmap(lambda p: st.integers(p + 1, P).map(lambda end: slice(p, end)))
    selecting = [draw(some_orders) for _ in range(masks)]
    return budget, Strip(positions, logits, selected, (H, G), selecting, n, draw(st.booleans())), order


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*POLICIES, "selective-per-head"])
@given(st.data())
def test_compiled_is_row_by_row(name, dtype, data):
    policy = make_policy(name)
    budget, strip, order = data.draw(strips(policy, dtype))
    before = [x.clone() for x in order]
    got, got_history = cpu_cache.order_of_strip(policy, budget, strip, order, history=True)
    want, want_history = row_by_row(policy, budget, strip, order, history=True)
    if not torch.equal(got.until, want.until):
        assert policy.needs_weights
        assert hangs_by_the_last_bits(policy, budget, strip, order, want)
        return
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    assert_close(got.f, want.f, **near)
    assert_close(got.score, want.score, **near)
    assert_close(got_history, want_history, **near)
    assert all(torch.equal(x, y) for x, y in zip(order, before, strict=True))  # what was given is left as it was
    assert cpu_cache.order_of_strip(policy, budget, strip, order, history=False)[1] is None


def hangs_by_the_last_bits(policy, budget, strip, order, want):
    """Whether the row-by-row order changes with what weights and scores are rounded to: then either may leave first."""
    for _ in range(32):
        logits, score = (x + rounding(x) for x in (strip.logits, order.score))
        nudged = strip._replace(logits=logits), order._replace(score=score)
        if not torch.equal(row_by_row(policy, budget, *nudged, history=False)[0].until, want.until):
            return True
    return False


def rounding(x):
    """Of numbers up to 1, or of larger ones by their size; -inf stays what it is."""
    size = torch.where(x.isfinite(), x.abs().clamp(min=1.0), 0.0)
    return 4 * torch.finfo(x.dtype).eps * (2 * torch.rand_like(x) - 1) * size


def test_any_layout_will_do():
    policy, (budget, strip, order) = make_policy("selective"), small_strip()
    want, _ = cpu_cache.order_of_strip(policy, budget, strip, order, False)
    turned = Order(*(x.transpose(0, 2).contiguous().transpose(0, 2) for x in order))
    flipped = strip._replace(selected=strip.selected.mT.contiguous().mT)
    got, _ = cpu_cache.order_of_strip(policy, budget, flipped, turned, False)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def small_strip():
    B, n = 3, 9
    selected = torch.rand(B, 1, n, n).tril(-1)
    order = Order(torch.full((B, 1, n), NEVER), torch.zeros(B, 1, n), torch.zeros(B, 1, n))
    return 4, Strip(torch.arange(n).repeat(B, 1), None, selected, (1, 1), [slice(0, 1)], n, True), order


def test_without_the_library(monkeypatch):
    case = some_case()
    want = case.whole()
    monkeypatch.setattr(native, "_LIBRARY", None)
    assert_same_run(case, case.whole(), want)  # it works, more slowly


def test_a_failure_of_the_library_is_not_passed_over(monkeypatch):
    class OutOfMemory:
        selattn_evict = staticmethod(lambda *_: 1)

    monkeypatch.setattr(native, "library", OutOfMemory)
    with pytest.raises(SelattnError, match="more memory than there is"):
        some_case().whole()


@pytest.mark.parametrize("history", [False, True])
def test_the_order_is_an_operator_of_torch(history):
    case = some_case("h2o")
    q, k = case.tokens.query, case.tokens.key  # 4 heads in 2 groups, each with an order of its own
    zeros = torch.zeros(2, 2, case.size, dtype=torch.float64)
    before = (torch.full((2, 2, case.size), NEVER), zeros[:, :1].contiguous(), zeros)
    positions = torch.arange(case.size).expand(2, -1).contiguous()
    rules = Rules(Selection(), strength=torch.tensor(0.5), scale=0.5, softcap=2.0)
    bias = torch.randn(1, 4, case.size, case.size, dtype=torch.float64) if history else None
    form = [torch.randn(2, 1, case.size, 3, dtype=torch.float64) for _ in range(2)] if history else []
    call = OrderCall(q, k, positions, Order(*before), rules, bias, *(form or (None, None)), 1, 0.0, 5, True, history)
    torch.library.opcheck(cpu_cache.NODE, tuple(cpu_cache.ARGUMENTS.flatten(call)))
