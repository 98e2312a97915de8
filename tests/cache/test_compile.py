"""The decode step is one graph of fixed shapes, which gives what it gives eagerly."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from selattn.cache import attend
from selattn.cache.attention import decode
from selattn.ops import Fixed, Selection
from tests.cache.cases import positions, some_case

KINDS = {
    "selective": {},
    "several masks": {"selection": Selection((0, 3), shift=False), "strength": 0.5},
    "window": {"policy": "window+4", "window": 4},
    "sparse": {"policy": "tova", "selection": None, "pattern": Fixed(4, 1, "split")},
    "tova": {"policy": "tova"},
    "h2o": {"policy": "h2o", "selection": None},
}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [0, 7], ids=lambda n: f"after {n}")
def test_decode_compiles_to_one_graph(kind, prompt):
    """While the slots fill up, when they are full, and over the border between: no graph is made again."""
    case, counter = some_case(**KINDS[kind]), CompileCounterWithBackend("aot_eager")
    eager, layer = case.layer(), case.layer()
    for each in (eager, layer):
        each.allocate(case.tokens, case.rules)
        if prompt:
            attend(each, case.cut(0, prompt), case.rules)
    step = torch.compile(lambda tokens: decode(layer, tokens, case.rules).output, fullgraph=True, backend=counter)
    for i in range(prompt, case.size):
        got, want = step(case.cut(i, i + 1)), decode(eager, case.cut(i, i + 1), case.rules).output
        assert_close(got, want, rtol=0, atol=1e-12)
        assert positions(layer) == positions(eager)
    assert counter.frame_count == 1
    for name, x in eager.tensors().items():
        assert_close(layer.tensors()[name], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "budget"),
    [*((kind, 20) for kind in KINDS), ("selective", None), pytest.param("h2o", 5000, marks=pytest.mark.slow)],
)
def test_storage_grows_under_a_compiled_step(kind, budget):
    """The graph is made anew a few times, not for every length."""
    case, counter = some_case(**{**KINDS[kind], "budget": budget}, size=36), CompileCounterWithBackend("aot_eager")
    eager, layer = case.layer(), case.layer()
    for each in (eager, layer):
        attend(each, case.cut(0, 3), case.rules)
    step = torch.compile(lambda tokens: attend(layer, tokens, case.rules).output, fullgraph=True, backend=counter)
    for i in range(3, case.size):
        got, want = step(case.cut(i, i + 1)), attend(eager, case.cut(i, i + 1), case.rules).output
        assert_close(got, want, rtol=0, atol=1e-12)
        assert positions(layer) == positions(eager)
    assert counter.frame_count <= (2 if budget == 20 else 6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit")  # by inductor itself
def test_decode_compiled_by_inductor():
    case = some_case()
    layer = case.layer()
    attend(layer, case.cut(0, 3), case.rules)
    step = torch.compile(lambda tokens: attend(layer, tokens, case.rules).output, fullgraph=True)
    outputs = [step(case.cut(i, i + 1)) for i in range(3, case.size)]
    assert_close(torch.cat(outputs, -2), case.whole().output[:, :, 3:], rtol=0, atol=1e-10)
