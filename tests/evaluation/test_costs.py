"""KV sizes are those that a simulation counts; decoding reports what the cache holds."""

import pytest

from selattn.cache import Budgets
from selattn.evaluation.speed import measure_decoding
from selattn.evaluation.subjects import kv_size
from selattn.ops.rules import Fixed, Strided
from tests.models.tiny import ALL_KINDS, CONTEXT, tiny, tiny_config


def counted(sees, context):
    """Token by token: what a later query can still read is held."""
    held = read = 0
    for i in range(context):
        later = [j for j in range(i + 1) if any(sees(k, j) for k in range(i, context))]
        held, read = max(held, len(later)), max(read, sum(sees(i, j) for j in range(i + 1)))
    return held, read


SEES = {
    "local:3": lambda i, j: i - j < 3,
    "selective:4": lambda i, j: i - j < 4,
    "strided:3": lambda i, j: any(map(bool, Strided(3).parts(i, j))),
    "fixed:4:1": lambda i, j: any(map(bool, Fixed(4, 1).parts(i, j))),
    "standard": lambda i, j: True,
    "selective": lambda i, j: True,
}


def test_kv_size_is_what_a_simulation_counts():
    size = kv_size(tiny_config(attention=ALL_KINDS, num_hidden_layers=6).description, CONTEXT)
    want = [counted(SEES[kind], CONTEXT) for kind in ALL_KINDS]
    assert list(zip(size.held, size.read, strict=True)) == want
    assert size.held[2] > 2 * size.read[2] - 3 > size.held[3]  # strided: little is read, nearly all is held
    assert size.memory_factor == pytest.approx(6 * CONTEXT / sum(size.held))


def test_budgets_limit_it():
    config = tiny_config(attention=["local:3", "selective"]).description
    assert kv_size(config, CONTEXT, Budgets((5, 8))).held == (3, 8)
    assert kv_size(config, CONTEXT, Budgets((5, 8)), "none").held == (3, CONTEXT)
    assert kv_size(config, CONTEXT, Budgets(99)).held == (3, CONTEXT)
    with_budgets = tiny_config(cache_budgets=[4, 6]).description
    assert kv_size(with_budgets, CONTEXT).memory_factor == Budgets((4, 6)).memory_factor(2, CONTEXT)


def test_decoding_reports_the_cache():
    whole, pruned = tiny(), tiny(cache_budgets=[3, 5])
    full = measure_decoding(whole, CONTEXT, batch=2, steps=4)
    few = measure_decoding(pruned, CONTEXT, batch=2, steps=4)
    config = whole.config
    token = 2 * config.num_key_value_heads * config.head_dim * 8
    assert full.full_bytes == few.full_bytes == 2 * 2 * CONTEXT * token
    assert few.cache_bytes < full.cache_bytes
    assert few.cache_bytes >= 2 * (3 + 5) * token
    assert 0 < few.quartiles[0] <= few.tokens_per_second <= few.quartiles[1]


def test_the_spread_is_that_of_the_steps(monkeypatch):
    """Steps of 1, 2, 3, 4 and 100 seconds: one that was disturbed is seen in the record, and does not decide."""
    clock = iter([0, 1, 1, 3, 3, 6, 6, 10, 10, 110])
    monkeypatch.setattr("selattn.evaluation.speed.time.perf_counter", lambda: next(clock))
    found = measure_decoding(tiny(), CONTEXT, batch=2, steps=5)
    assert found.tokens_per_second == pytest.approx(2 / 3)
    assert found.quartiles == pytest.approx((2 / 4, 2 / 2))


def test_one_step_has_no_spread():
    found = measure_decoding(tiny(), CONTEXT, steps=1)
    assert found.quartiles == (found.tokens_per_second, found.tokens_per_second)
