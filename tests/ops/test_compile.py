"""Compiled, the operator is one graph and gives what it gives eagerly; its registered parts keep torch's rules."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from selattn.ops import AuxRequest, Fixed, Selection, Sequences, Strided, causal_attention, selective_attention
from selattn.ops.backends import chunked, cpu
from selattn.ops.request import Request
from selattn.ops.rules import Rules
from tests.ops.cases import BACKENDS, attend, only

B, N = 2, 37


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def leaves():
    return [normal(B, h, N, d).requires_grad_() for h, d in ((4, 6), (2, 6), (2, 3))]


def padded(q, k, v, mask, backend):
    got = attend(q, k, v, mask[:, None, None], enable_gqa=True, backend=backend, wanted=("memory",))
    return got.output.sum() + got.memory.amax(-1).sum()


def packed(q, k, v, ids, backend):
    sequences = Sequences.from_documents(ids)
    got = attend(q, k, v, sequences=sequences, enable_gqa=True, window=9, backend=backend, wanted=("f", "final_f"))
    return got.output.sum() + got.f.sin().sum() + got.final_f.sin().sum()


def cumulative(q, k, v, lengths, backend):
    q, k, v = (x[:1] for x in (q, k, v))
    sequences = Sequences.from_cu_seqlens(lengths, N)
    return selective_attention(q, k, v, sequences=sequences, enable_gqa=True, backend=backend).sin().sum()


def several_masks(q, k, v, bias, backend):
    chosen = Selection((1, 0), relu=False, shift=False)
    return selective_attention(q, k, v, bias, enable_gqa=True, selection=chosen, backend=backend).sin().sum()


def separate(q, k, v, _, backend):
    form = {"selection_query": q[:, :1], "selection_key": k[:, :1]}
    return selective_attention(q, k, v, enable_gqa=True, **form, backend=backend).sin().sum()


def continued(q, k, v, initial_f, backend):
    return selective_attention(q[:, :, -5:], k, v, initial_f=initial_f, enable_gqa=True, backend=backend).sin().sum()


def sparse(q, k, v, _, backend):
    return causal_attention(q, k, v, pattern=Fixed(8, 2, "split"), enable_gqa=True, backend=backend).sin().sum()


def evicted(q, k, v, until, backend):
    got = attend(
        q, k, v, visible_until=until, window=20, strength=0.7, enable_gqa=True, backend=backend, wanted=("memory",)
    )
    return got.output.sin().sum() + got.memory.sin().sum()


def standard(q, k, v, _, backend):
    return causal_attention(q, k, v, enable_gqa=True, backend=backend).sin().sum()


FORMS = {
    padded: torch.arange(N) >= torch.tensor([[5], [0]]),
    packed: (torch.arange(N) > 20).long().expand(B, N),
    cumulative: torch.tensor([0, 11, 30], dtype=torch.int32),
    several_masks: torch.randn(4, N, N, dtype=torch.float64),
    separate: None,
    continued: torch.ones(B, 1, N - 5, dtype=torch.float64),
    sparse: None,
    evicted: torch.arange(N).expand(B, N) + 10,
    standard: None,
}
REFUSED = {"cpu": (packed, several_masks, separate, continued, sparse)}  # with what they ask for; see test_errors.py


@pytest.mark.parametrize(
    ("form", "backend"),
    [pytest.param(f, b, id=f"{f.__name__}-{b}") for f in FORMS for b in BACKENDS if f not in REFUSED.get(b, ())],
)
def test_compiled_is_eager(form, backend):
    """One graph, forward and backward."""
    inputs, extra = leaves(), FORMS[form]
    compiled = torch.compile(form, fullgraph=True, backend="aot_eager")
    got, want = (f(*inputs, extra, backend) for f in (compiled, form))
    assert_close(got, want, rtol=1e-12, atol=1e-12)
    got, want = (torch.autograd.grad(x, inputs) for x in (got, want))
    assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit")  # by inductor itself
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_by_inductor_is_eager(backend):
    inputs, extra = leaves(), FORMS[padded]
    compiled = torch.compile(padded, fullgraph=True)
    got, want = (torch.autograd.grad(f(*inputs, extra, backend), inputs) for f in (compiled, padded))
    assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_strength_that_changes_does_not_recompile(backend):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda q, k, v, s: selective_attention(q, k, v, strength=s, enable_gqa=True, backend=backend),
        fullgraph=True,
        backend=counter,
    )
    inputs, seen = leaves(), []
    for strength in (0.0, 0.25, 0.5, 1.0):
        got = compiled(*inputs, torch.tensor(strength))
        assert_close(got, selective_attention(*inputs, strength=strength, enable_gqa=True, backend=backend))
        seen.append(got)
    assert counter.frame_count == 1
    assert (seen[0] - seen[1]).abs().max() > 1e-2


# The reference takes 8 s: its matrices of symbolic size.
@pytest.mark.parametrize("backend", [pytest.param("reference", marks=pytest.mark.slow), "chunked", "cpu"])
def test_another_length_does_not_recompile(backend):
    def attend(x):
        return selective_attention(x, x, x, backend=backend)

    counter, frames = CompileCounterWithBackend("aot_eager"), []
    compiled = torch.compile(attend, fullgraph=True, backend=counter, dynamic=True)
    for n in (33, 47, 70, 130):
        x = normal(1, 2, n, 4).requires_grad_()
        got, want = compiled(x), attend(x)
        assert_close(got, want, rtol=1e-12, atol=1e-12)
        got, want = (torch.autograd.grad(y.sin().sum(), x) for y in (got, want))
        assert_close(got, want, rtol=1e-12, atol=1e-12)
        frames.append(counter.frame_count)
    assert frames[0] >= 1
    assert len(set(frames)) == 1


DYNAMIC = {
    "documents": lambda x, n, b: causal_attention(x, x, x, sequences=Sequences.from_documents(n // 9), backend=b),
    "mask": lambda x, n, b: attend(x, x, x, (n > 1)[:, None, None], backend=b, wanted=("memory",)),
    "until": lambda x, n, b: attend(x, x, x, visible_until=n + 9, backend=b, wanted=("living",)),
    "both": lambda x, n, b: selective_attention(
        x, x, x, visible_until=n + 9, sequences=Sequences.from_mask(n > 1), window=20, backend=b
    ),
}


@pytest.mark.parametrize("form", DYNAMIC)
@pytest.mark.parametrize("backend", ["chunked", "cpu"])
def test_lengths_with_sequences_or_evictions_do_not_recompile(form, backend):
    """One graph, whole, for all lengths from 2 on; 96 queries are one block of the compiled backend."""
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(DYNAMIC[form], fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (33, 5, 64, 96, 97, 200):
        x, index = normal(2, 4, n, 6).requires_grad_(), torch.arange(n).expand(2, n)
        got, want = (f(x, index, backend) for f in (compiled, DYNAMIC[form]))
        got, want = (y.output if isinstance(y, tuple) else y for y in (got, want))
        assert_close(got, want, rtol=1e-12, atol=1e-12)
        got, want = (torch.autograd.grad(y.sin().sum(), x) for y in (got, want))
        assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def check_operator(operator, request):
    """torch's own checks of both directions: schema, fake kernel, autograd, and that a compiled graph is the same."""
    arguments = operator.arguments.flatten(request)
    torch.library.opcheck(operator.forward, tuple(arguments))
    if not request.query.requires_grad:
        return
    plain = tuple(x.detach() if torch.is_tensor(x) else x for x in arguments)
    found = dict(zip(operator.fields, operator.forward(*plain), strict=True))
    saved = [found[name] for name in operator.saved]
    came = [torch.ones_like(found[name]) if found[name].numel() else None for name in operator.came]
    needs = operator.flags({name: getattr(request, name) is not None for name in operator.gradients})
    torch.library.opcheck(operator.backward, (*saved, *came, needs, *plain))


RULES = Rules(Selection(), scale=0.4)


def asked(rules=RULES, dtype=torch.float64, **more):
    q, k, v = (x.detach().to(dtype).requires_grad_(more.get("gradient", True)) for x in leaves())
    return Request(q, k, v, rules, **{"gradient": True, **more})


MEMORY, ALL = AuxRequest(memory=True), AuxRequest(f=True, memory=True, final_f=True)
BOTH = {
    "default": asked(),
    "half": asked(dtype=torch.bfloat16, wanted=MEMORY),
    "bias, soft cap": asked(RULES._replace(softcap=3.0), bias=normal(1, 4, N, 1), wanted=MEMORY),
    "two masks, separate": asked(selection_query=normal(B, 2, N, 3), selection_key=normal(B, 2, N, 3)),
    "packed, evicted": asked(
        RULES._replace(strength=torch.tensor(0.5)),
        start=FORMS[packed] * 21,
        until=FORMS[evicted].unsqueeze(1),
        wanted=MEMORY,
    ),
}
OPERATORS = [
    *((operator, request) for request in BOTH.values() for operator in (chunked.OPERATOR, cpu.OPERATOR)),
    (chunked.OPERATOR, asked(initial_f=normal(B, 1, N).abs(), wanted=ALL)),
    (chunked.OPERATOR, asked(Rules(window=4, pattern=Strided(3)))),
    (chunked.OPERATOR, asked(RULES._replace(dropout_p=0.5), seed=torch.tensor(3))),
    (cpu.OPERATOR, asked(RULES._replace(window=7), dtype=torch.float32, wanted=AuxRequest(memory=True, living=True))),
    (cpu.OPERATOR, asked(initial_f=normal(B, 1, N).abs(), wanted=AuxRequest(final_f=True), gradient=False)),
    (cpu.OPERATOR, asked(Rules())),
]


@pytest.mark.parametrize(("operator", "request_"), OPERATORS, ids=lambda x: getattr(x, "name", ""))
def test_registered_operators(operator, request_):
    check_operator(operator, request_)


@pytest.mark.parametrize("backend", only(BACKENDS, "cpu"))
def test_compiled_dropout_draws_anew_each_time(backend):
    """The seed is drawn in the graph, not once when it is compiled."""

    def attend(x):
        return selective_attention(x, x, x, dropout_p=0.5, backend=backend)

    x, compiled = normal(1, 2, 9, 4), torch.compile(attend, fullgraph=True, backend="aot_eager")
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    got = compiled(x)
    torch.manual_seed(0)
    assert torch.equal(got, compiled(x))
