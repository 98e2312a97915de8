"""torch's own checks of the operators, and that a compiled graph is one graph that gives what eager gives."""

import pytest
import torch
from gpu_check import make
from torch.testing import assert_close

from selattn.cache import SlotLayer, attend, evictions, make_policy
from selattn.ops import selective_attention
from selattn.ops.backends.triton import Triton, cache, selfcheck
from selattn.ops.backends.triton.attention import OPERATOR
from tests.ops.test_compile import check_operator
from tests.ops.triton.interpreted.small import size
from tests.ops.triton.interpreted.test_cache import RULES, tokens


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "name", ["default", *(pytest.param(x, marks=pytest.mark.slow) for x in ("everything", "initial F", "bias"))]
)
def test_opcheck(name):
    request = make(name, size(n=5))._replace(gradient=True)
    leaves = {key: getattr(request, key) for key in selfcheck.DIFFERENTIABLE if getattr(request, key) is not None}
    check_operator(OPERATOR, request._replace(**{key: x.requires_grad_() for key, x in leaves.items()}))


def test_opcheck_of_the_order(monkeypatch):
    given, seen = tokens("", 0, 1, 9), []
    monkeypatch.setattr(cache, "run_order", lambda call, real=cache.run_order: seen.append(call) or real(call))
    evictions(given, None, RULES["default"], 4, make_policy("selective"), Triton())
    monkeypatch.undo()
    torch.library.opcheck(cache.ORDER_NODE, tuple(cache.ORDER_ARGUMENTS.flatten(seen[0])))


def test_opcheck_of_a_step(monkeypatch):
    layer, seen = SlotLayer(4, make_policy("selective")), []
    attend(layer, tokens("", 0, 1, 6), RULES["default"])
    monkeypatch.setattr(cache, "run_step", lambda call, real=cache.run_step: seen.append(call) or real(call))
    attend(layer, tokens("", 1, 1, 1), RULES["default"], backend="triton")
    monkeypatch.undo()
    torch.library.opcheck(cache.STEP_NODE, tuple(cache.STEP_ARGUMENTS.flatten(seen[0])))


def test_a_compiled_graph_is_eager():
    x = torch.randn(1, 2, 9, 8, requires_grad=True)

    def call(x):
        return selective_attention(x, x, x, softcap=3.0, backend="triton").sin().sum()

    got, want = (f(x) for f in (torch.compile(call, fullgraph=True, backend="aot_eager"), call))
    assert_close(got, want)
    assert_close(*(torch.autograd.grad(y, x) for y in (got, want)))


def test_a_compiled_step_is_eager():
    layers = [SlotLayer(4, make_policy("selective")) for _ in range(2)]
    for layer in layers:
        attend(layer, tokens("", 0, 2, 6), RULES["default"])

    def call(layer, new):
        return attend(layer, new, RULES["default"], backend="triton").output

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for seed in (1, 2):
        new = tokens("", seed, 2, 1)
        assert_close(compiled(layers[0], new), call(layers[1], new))
    for name, x in layers[1].tensors().items():
        assert_close(layers[0].tensors()[name], x)
