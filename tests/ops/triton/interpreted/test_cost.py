"""The cost model counts what the kernels do: products exactly, bytes to a few percent."""

import pytest
import torch
from gpu_cost import Costs, Shape, step_cost

from selattn.ops.backends.triton import attention, configs
from selattn.ops.backends.triton.configs import Config, Tile
from tests.ops.cases import attend
from tests.ops.triton.counting import counted
from tests.ops.triton.interpreted.test_cache import RULES, tokens

CONFIG = Config(
    32,
    *(Tile(32, 4, 1), Tile(16, 4, 1, 2), Tile(32, 4, 1), Tile(32, 4, 1), Tile(32, 4, 1), Tile(32, 4, 1, 2)),
)
N = 150


@pytest.fixture
def _config(monkeypatch):
    monkeypatch.setattr(configs, "INTERPRETED", CONFIG)


@pytest.mark.usefixtures("_config")
@pytest.mark.parametrize(("groups", "gain"), [(2, 0.0), (1, 8.0)])
def test_costs_are_those_counted(groups, gain, monkeypatch):
    """Where all live, and where many are dead."""
    q, k, v = (torch.randn(1, h, N, 64).half() for h in (2, groups, groups))
    leaves = [x.requires_grad_() for x in (gain * q, k, v)]
    dead, real = [], attention.with_lists
    monkeypatch.setattr(attention, "with_lists", lambda *args: dead.append(args[-1]) or real(*args))
    with counted() as found:
        got = attend(*leaves, enable_gqa=True, wanted=("memory", "living"), backend="triton")
        ahead = dict(found)
        found.clear()
        (got.output.float().sin().sum() + got.memory.sin().sum()).backward()
    assert (got.living < 0.95).all() == (gain > 0)
    costs = Costs(Shape(1, 2, groups, N, 64, 2), CONFIG, dead=dead[0][0, 0])
    for made, counts in ((costs.forward(), ahead), (costs.backward(), dict(found))):
        assert {cost.kernel for cost in made} == set(counts)
        for cost in made:
            products, size = counts[cost.kernel]
            assert cost.products == products, cost.kernel
            assert cost.bytes == pytest.approx(size, rel=0.12), cost.kernel


def test_the_cost_of_a_step():
    from selattn.cache import SlotLayer, make_policy
    from selattn.cache import attend as attend_slots

    layer = SlotLayer(60, make_policy("selective"))
    attend_slots(layer, tokens("", 0, 1, 60, torch.float16), RULES["default"])
    with counted() as found:
        attend_slots(layer, tokens("", 1, 1, 1, torch.float16), RULES["default"], backend="triton")
    cost = step_cost(Shape(1, 4, 2, 1, 5, 2), 60)
    # Tiles of 32 slots: 64 of them for 60.
    assert found["step"][0] == pytest.approx(cost.products * 64 / 60, rel=0.01)
    assert found["step"][1] == pytest.approx(cost.bytes, rel=0.1)
