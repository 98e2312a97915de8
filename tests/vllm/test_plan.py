"""States in the memory of a serving engine, without vLLM: pages of bytes whose rows lie apart."""

import pytest
import torch

from selattn import Selection, SelectiveConfig, SelectiveForCausalLM
from selattn.cache import Budgets, SlotLayer, attend
from selattn.cache.policies import make_policy
from selattn.errors import SelattnError
from selattn.ops.backends import dispatch
from selattn.ops.eviction import StepRequest
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules
from selattn.vllm.plan import ALIGNMENT, LayerPlan, layer_plans
from selattn.vllm.serving import serving

SHAPE = (4, 2, 16)  # H, G, D


def pages_of(plans, dtype, blocks):
    """[blocks, bytes] of each layer, as vLLM lays them out: all layers of a block side by side."""
    sizes = [plan.nbytes(dtype) for plan in plans]
    memory = torch.randint(-128, 127, (blocks, sum(sizes)), dtype=torch.int8)  # what others have left
    return memory.split(sizes, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("policy", ["selective", "h2o", "tova", "window+4", "selective-per-head"])
def test_one_call_over_rows_that_lie_apart(policy, dtype):
    """Requests of other lengths, in blocks in any order: each goes on as it would alone, and no other block changes."""
    H, G, D = SHAPE
    rules = Rules({"selective-per-head": Selection((0, 2)), "h2o": None}.get(policy, Selection(0)))
    plans = [LayerPlan(H, G, D, rules, budget, make_policy(policy)) for budget in (6, 11)]
    pages = pages_of(plans, dtype, blocks=9)
    generator = torch.Generator().manual_seed(1)
    rows, lengths = torch.tensor([7, 2, 5]), [0, 4, 20]

    def tokens(batch, count):
        shapes = [(batch, H, count, D), (batch, G, count, D), (batch, G, count, D)]
        return Tokens(*(torch.randn(shape, generator=generator).to(dtype) for shape in shapes))

    for plan, page in zip(plans, pages, strict=True):
        pool, alone = plan.pool(page, dtype), []
        pool.clear(rows)
        for row, length in zip(rows, lengths, strict=True):
            layer = SlotLayer(plan.budget, plan.policy)
            slots = SlotLayer(plan.budget, plan.policy)
            slots.pool, slots.reserved, slots.device = pool, pool.rows, page.device
            slots.use(row[None])
            if length:
                prompt = tokens(1, length)
                wanted, found = (attend(x, prompt, rules).output for x in (layer, slots))
                torch.testing.assert_close(found, wanted)
            alone.append(layer)
        others = torch.ones(9, dtype=torch.bool)
        others[rows] = False
        before = page[others].clone()
        for step in range(12):
            now = torch.tensor([length + step for length in lengths])
            query = tokens(3, 1)
            used = min(plan.budget, int(now.max()) + 1)
            request = StepRequest(query, rules, pool, rows, now, plan.policy, plan.budget, used)
            found = dispatch.step(request, "cpu")
            for i, layer in enumerate(alone):
                part = Tokens(*(None if x is None else x[i : i + 1] for x in query))
                torch.testing.assert_close(found[i : i + 1], attend(layer, part, rules).output)
        assert torch.equal(page[others], before)


def test_a_state_is_what_it_says():
    """Positions (4 bytes), F (4), a score (4) and keys and values of each slot, up to a cache line."""
    H, G, D = SHAPE
    for policy, extra in (("selective", 4), ("tova", 8)):
        plan = LayerPlan(H, G, D, Rules(Selection(0)), 100, make_policy(policy))
        exact = 100 * (4 + extra + 2 * G * D * 2)
        assert 0 <= plan.nbytes(torch.bfloat16) - exact < ALIGNMENT
        assert plan.whole_nbytes(1000, torch.bfloat16) == 1000 * 2 * G * D * 2
    bare = LayerPlan(H, G, D, Rules(), 100, make_policy("window"))
    assert bare.nbytes(torch.float32) - 100 * (4 + 2 * G * D * 4) < ALIGNMENT


def test_budgets_longer_than_any_text_reserve_only_that():
    config = SelectiveConfig.from_d(1, vocab_size=50, cache_budgets=4000, max_position_embeddings=64)
    assert [plan.budget for plan in layer_plans(config, 48)] == [48]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cache_budgets": None}, "no budgets are in force"),
        ({"cache_policy": "none"}, "no budgets are in force"),
        ({"cache_policy": "threshold=1"}, "varying number of tokens"),
        ({"attention": "standard"}, "needs F"),
        ({"cache_budgets": [8, 8]}, "2 budgets do not fit"),
    ],
)
def test_configs_that_cannot_be_served(changes, what):
    config = SelectiveConfig.from_d(1, vocab_size=50, cache_budgets=8)
    for name, value in changes.items():
        setattr(config, name, [value] if name == "attention" else value)
    with pytest.raises(SelattnError, match=what):
        layer_plans(config, 64)


def test_how_many_requests_fit(tmp_path):
    config = SelectiveConfig.from_d(1, vocab_size=50, max_position_embeddings=256, num_hidden_layers=2)
    SelectiveForCausalLM(config).save_pretrained(tmp_path)
    found = serving(tmp_path, Budgets((16, 32)), dtype="bfloat16")
    assert found.overrides == {"cache_budgets": [16, 32]}
    assert found.state == (16 + 32) * (4 + 4 + 2 * 64 * 2)
    assert found.whole == 2 * 256 * 2 * 64 * 2
    assert found.fit(10 * found.state) == 9
    assert "--hf-overrides" in found.command([])
