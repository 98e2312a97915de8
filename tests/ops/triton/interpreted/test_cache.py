"""Decoding and the eviction order by the kernels equal those by the compiled library, or by plain PyTorch."""

import pytest
import torch
from torch.testing import assert_close

from selattn.cache import SlotLayer, attend, evictions, make_policy
from selattn.ops import Selection, Sequences
from selattn.ops.backends import dispatch
from selattn.ops.backends.triton import cache, configs
from selattn.ops.eviction import StepRequest
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules
from selattn.vllm.plan import LayerPlan
from tests.ops.triton.interpreted.small import SMALL


def slopes(queries, keys):
    """A bias that differs between heads, and hides what is far away from two of them."""
    away = (queries[:, None, :, None] - keys[:, None, None, :]).float()
    steep = torch.tensor([0.1, 0.4, 0.0, 0.2]).view(1, 4, 1, 1)
    return (-steep * away).masked_fill((away > 11) & (steep > 0.15), -torch.inf)


RULES = {
    "default": Rules(Selection()),
    "another head, window": Rules(Selection(3), 0.3, window=5, scale=0.5),
    "no shift, nothing protected": Rules(Selection(1, protect_first=False, protect_self=False, shift=False)),
    "two masks, no relu": Rules(Selection((0, 3), relu=False, shift=False), strength=torch.tensor(0.5)),
    "separate form": Rules(Selection()),
    "standard, soft cap": Rules(softcap=0.7),
    "soft cap": Rules(Selection(2), softcap=0.7),
    "bias": Rules(Selection(1, relu=False), softcap=3.0, bias=slopes),
    "bias, two masks": Rules(Selection((0, 3), shift=False), bias=slopes),
    "bias, separate form": Rules(Selection(), bias=slopes),
    "bias, standard": Rules(bias=slopes),
}
RARE = ("bias", "bias, standard", "bias, separate form")  # with the slow tests
EACH = [
    *(pytest.param("selective", kind, marks=[pytest.mark.slow] * (kind in RARE)) for kind in RULES),
    ("window+2", "default"),
    ("window+2", "standard, soft cap"),
]
PACKED = Sequences.from_documents(
    torch.arange(40)[None] // torch.tensor([[17], [29]]), torch.arange(40) >= torch.tensor([[3], [0]])
)
HOLES = Sequences.from_mask((torch.arange(40) + torch.tensor([[0], [1]])) % 3 > 0)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Several tiles of slots, several strips of rows."""
    monkeypatch.setattr(configs, "INTERPRETED", SMALL)
    monkeypatch.setattr(cache, "STRIP_BYTES", 1)


def tokens(kind, seed, batch, count, dtype=torch.float32, groups=2):
    chance = torch.Generator().manual_seed(seed)

    def normal(heads, features):  # rows that are not neighbours, as a model has them
        return torch.randn(batch, count, heads, features, generator=chance).to(dtype).transpose(1, 2)

    made = Tokens(normal(4, 5), normal(groups, 5), normal(groups, 3))
    if "separate form" in kind:
        made = made._replace(selection_query=normal(2, 7), selection_key=normal(2, 7))
    return made


def assert_same(got, want, **near):
    for name, x in want.tensors().items():
        if name == "position":
            assert torch.equal(got.tensors()[name], x)
        else:
            assert_close(got.tensors()[name], x, msg=lambda text, name=name: f"{name}: {text}", **near)


@pytest.mark.parametrize(("policy", "kind"), EACH)
def test_steps_of_decoding(policy, kind):
    """From an empty cache on until long after it is full; who leaves, F, all that is stored, and the output."""
    layers, rules = [SlotLayer(4, make_policy(policy)) for _ in range(2)], RULES[kind]
    for step in range(7):
        new = tokens(kind, step, 2, 1, groups=(1, 2, 4)[len(kind) % 3])
        got, want = (
            attend(layer, new, rules, backend=name).output
            for layer, name in zip(layers, ("triton", "auto"), strict=True)
        )
        assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert_same(*layers, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_steps_over_several_tiles(dtype):
    """A prompt, and steps after it; a budget of more slots than a tile has, and none at all."""
    for budget in (20, None):
        layers, rules = [SlotLayer(budget, make_policy("selective")) for _ in range(2)], RULES["default"]
        prompt = tokens("", 0, 2, 19, dtype)
        for layer in layers:
            attend(layer, prompt, rules)
        for step in range(4):
            new = tokens("", 1 + step, 2, 1, dtype)
            got, want = (
                attend(layer, new, rules, backend=name).output
                for layer, name in zip(layers, ("triton", "reference"), strict=True)
            )
            near = 2e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
            assert_close(got, want, rtol=near, atol=near)
        assert_same(*layers, rtol=1e-4, atol=1e-4)


def test_a_row_that_sits_out_is_left_alone():
    layers, rules = [SlotLayer(4, make_policy("selective")) for _ in range(2)], RULES["default"]
    for step in range(8):
        new = tokens("", step, 3, 1)._replace(real=torch.tensor([[True], [step % 2 == 0], [step > 4]]))
        got, want = (
            attend(layer, new, rules, backend=name).output
            for layer, name in zip(layers, ("triton", "reference"), strict=True)
        )
        assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert_same(*layers, rtol=1e-5, atol=1e-6)
    assert layers[0].length.tolist() == [8, 4, 3]


@pytest.mark.parametrize(("policy", "kind"), EACH)
def test_the_order_of_whole_sequences(policy, kind):
    for sequences in (PACKED,) if kind != "default" else (None, HOLES):
        given = tokens(kind, 1, 2, 40)
        got, want = (
            evictions(given, sequences, RULES[kind], 7, make_policy(policy), name) for name in ("triton", "auto")
        )
        assert torch.equal(got, want)
        assert (want < 40).any()


@pytest.mark.parametrize("kind", ["default", "separate form"])
def test_the_order_goes_on_from_what_is_kept(kind):
    """A prompt in two pieces, through the cache: entries from before, with F of their own."""
    layers = [SlotLayer(6, make_policy("selective")) for _ in range(2)]
    for seed, count in ((0, 11), (1, 5)):
        new = tokens(kind, seed, 2, count)
        got, want = (
            attend(layer, new, RULES[kind], backend=name).output
            for layer, name in zip(layers, ("triton", "reference"), strict=True)
        )
        assert_close(got, want, rtol=1e-5, atol=1e-5)
        assert_same(*layers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("budget", [2, 39, 40, 100])
def test_budgets_of_all_sizes(budget):
    given, rules, policy = tokens("", 2, 1, 40), RULES["default"], make_policy("selective")
    got, want = (evictions(given, None, rules, budget, policy, name) for name in ("triton", "auto"))
    assert torch.equal(got, want)


@pytest.mark.parametrize("policy", ["selective", "window+2"])
def test_rows_in_the_memory_of_a_serving_engine(policy):
    """States of several layers lie side by side in each block, and the blocks of a step in any order."""
    plan = LayerPlan(4, 2, 5, RULES["default"], 6, make_policy(policy))
    size, rows = plan.nbytes(torch.float32), torch.tensor([5, 1, 3])
    memory = torch.randint(-128, 127, (7, 3 * size), dtype=torch.int8, generator=torch.Generator().manual_seed(2))
    pools = [plan.pool(each[:, size : 2 * size], torch.float32) for each in (memory, memory.clone())]
    before = memory.clone()
    for pool in pools:
        pool.clear(rows)
    for step in range(9):
        new = tokens("default", step, 3, 1)
        new = new._replace(value=new.key)
        length, used = torch.full((3,), step), min(6, step + 1)
        requests = [StepRequest(new, plan.rules, x, rows, length, plan.policy, plan.budget, used) for x in pools]
        got, want = dispatch.step(requests[0], "triton"), dispatch.step(requests[1], "cpu")
        assert_close(got, want, atol=1e-5, rtol=1e-5)
    for name, x in pools[1].tensors().items():
        if name not in ("length", "seen") and x.numel():
            assert_close(pools[0].tensors()[name][rows], x[rows], atol=1e-5, rtol=1e-5)
    others = torch.tensor([0, 2, 4, 6])
    assert torch.equal(memory[others], before[others])
