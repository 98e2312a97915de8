"""NaN and infinity: padding reaches nobody, forward and backward, and what is visible is not hidden.

The compiled backend does more: nothing that is invisible reaches a row. The definition in `literal` goes over what a
row sees and nothing else, so that it says what has to be NaN there.
"""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.ops import causal_attention, selective_attention
from selattn.ops.backends import dispatch
from tests.ops.cases import BACKENDS, SHORT, Case, attend, cases, examples, rows, sequences
from tests.ops.literal import definition

ODD = (math.nan, math.inf, -math.inf)


@st.composite
def poisoned(draw, lengths, backend):
    """A case with a few numbers in it that are not finite."""
    case = draw(cases(lengths, backend=backend))
    chance = torch.Generator().manual_seed(case.seed)
    for name in draw(st.lists(st.sampled_from([x for x in case.inputs if x != "attn_mask"]), min_size=1, max_size=2)):
        x = case.inputs[name] = case.inputs[name].clone()
        for _ in range(draw(st.integers(1, 3))):
            at = tuple(int(torch.randint(n, (), generator=chance)) for n in x.shape)
            x[at if draw(st.booleans()) else at[:-1]] = draw(st.sampled_from(ODD))
    return case


def assert_equal_with_nan(got, want):
    for name, x in got.items():
        told = {"equal_nan": True, "msg": lambda m, name=name: f"{name}: {m}"}
        assert_close(x, want[name], rtol=1e-9, atol=1e-10, **told)


@examples(6)
@given(data=st.data())
def test_what_is_not_finite_is_where_the_definition_has_it(data):
    case = data.draw(poisoned((*SHORT, 23, 97), "cpu"))
    assume(dispatch.BACKENDS["cpu"].refusal(case.request()) is None)
    assert_equal_with_nan(case.run("cpu", gradients=False), definition(**case.definition())._asdict())


@st.composite
def with_strangers(draw, backend):
    """A case, and which of its tokens are strangers: padding, and for "cpu" documents that nobody asks for."""
    seed, batch = draw(st.integers(0, 2**31)), draw(st.integers(1, 3))
    length = draw(st.sampled_from((*SHORT, 40, 97, *[200] * (backend == "cpu"))))
    groups, shared, size = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.sampled_from((3, 8)))
    chance = torch.Generator().manual_seed(seed)
    heads = {"query": groups * shared, "key": groups, "value": groups}
    if draw(st.booleans()):
        heads |= {"selection_query": 1, "selection_key": 1}
    inputs = {
        name: torch.randn(batch, n, length, size, generator=chance, dtype=torch.float64) for name, n in heads.items()
    }
    documents = draw(rows(batch, length, ("packed", "scattered", "padded")))
    options = {"sequences": sequences(documents), "enable_gqa": True, "softcap": draw(st.sampled_from((None, 3.0)))}
    options |= {"window": draw(st.none() | st.integers(1, length)), "tolerance": draw(st.sampled_from((0.0, 2.0**-24)))}
    asked = draw(st.booleans())
    options["wanted"] = ("memory",) * asked
    upstream = {"output": torch.randn(batch, heads["query"], length, size, generator=chance, dtype=torch.float64)}
    if asked:
        upstream["memory"] = torch.randn(batch, 1, length, generator=chance, dtype=torch.float64)
    strange = torch.tensor([[d is None or (backend == "cpu" and d % 2 == 1) for d in row] for row in documents])
    return Case(inputs, options, documents, seed), upstream, strange


def changed(x, strange, value):
    """Tokens that are strangers, in all heads, set to a value. x: [B, heads, length(, size)]."""
    mask = strange[:, None, :, None] if x.ndim == 4 else strange[:, None]
    return torch.where(mask, value, x)


@pytest.mark.parametrize("backend", BACKENDS)
@examples(4)
@given(data=st.data())
def test_what_is_invisible_does_not_matter(backend, data):
    """Whatever strangers hold, and whatever gradient comes back to them: the rest is the same, and gets gradients."""
    case, upstream, strange = data.draw(with_strangers(backend))
    odd = data.draw(st.sampled_from(ODD))
    which = data.draw(st.sets(st.sampled_from([*case.inputs, *upstream]), min_size=1))

    def run(value):
        inputs = {name: changed(x, strange, value) if name in which else x for name, x in case.inputs.items()}
        given = {name: changed(x, strange, value) if name in which else x for name, x in upstream.items()}
        return Case(inputs, case.options, case.documents, case.seed).run(backend, given)

    got, want = run(odd), run(0.0)
    for name, x in want.items():
        assert_close(
            changed(got[name], strange, 0.0),
            changed(x, strange, 0.0),
            rtol=1e-12,
            atol=1e-12,
            msg=lambda m, name=name: f"{name}: {m}",
        )


@pytest.mark.parametrize("name", ["key", "value", "query"])
@pytest.mark.parametrize("odd", ODD)
def test_evicted_or_out_of_the_window(odd, name):
    """Rows that see the token no longer, or not yet, are as if it were 0; so are their queries' gradients."""
    n, at, gone = 230, 100, 150
    inputs = {x: torch.randn(2, 2, n, 8, dtype=torch.float64) for x in ("query", "key", "value")}
    until = torch.full((2, n), n)
    until[:, at] = gone
    untouched = torch.ones(n, dtype=torch.bool)
    untouched[at : gone if name != "query" else at + 1] = False
    for options in ({"visible_until": until}, {"window": gone - at}, {"visible_until": until, "window": 170}):
        found = []
        for value in (odd, 0.0):
            leaves = {x: y.clone() for x, y in inputs.items()}
            leaves[name][:, :, at] = value
            leaves = {x: y.requires_grad_() for x, y in leaves.items()}
            output = causal_attention(**leaves, **options, backend="cpu")
            found.append((output.detach(), torch.autograd.grad(output.sin().sum(), leaves["query"])[0]))
        for got, want in zip(*found, strict=True):
            assert_close(got[:, :, untouched], want[:, :, untouched], rtol=0, atol=1e-12)
            assert not got[:, :, ~untouched].isfinite().all(-1).any()


@pytest.mark.parametrize("odd", ODD)
def test_a_key_that_nobody_sees(odd):
    """Evicted before its own row: neither its key nor its value reaches anything, and their gradients are 0."""
    n = 130
    until = torch.full((2, n), n)
    until[:, ::3] = 0
    strange = until == 0
    found = []
    for value in (odd, 0.0):
        leaves = [
            torch.randn(2, 2, n, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)
        ]
        leaves = [leaves[0], *(changed(x, strange, value) for x in leaves[1:])]
        leaves = [x.requires_grad_() for x in leaves]
        got = attend(*leaves, visible_until=until, wanted=("memory",), backend="cpu")
        loss = got.output.sin().sum() + got.memory.sin().sum()
        found.append((got.output.detach(), *torch.autograd.grad(loss, leaves)))
    for got, want in zip(*found, strict=True):
        assert got.isfinite().all()
        assert_close(got, want, rtol=0, atol=1e-12)
    assert (found[0][2].transpose(1, 2)[strange] == 0).all()


def assert_not_hidden(got, want, backend):
    """What should not be finite is not; in the compiled backend nothing else."""
    assert got[want].all()
    assert backend != "cpu" or torch.equal(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_visible_value_is_not_hidden(dtype, odd, backend):
    """Not even in a column that is forgotten for good: its feature is not finite in all later rows, and in no other."""
    n, at = 470, 60
    q, k, v = 3 * torch.randn(2, 4, n, 16), torch.randn(2, 4, n, 16), torch.randn(2, 4, n, 16)
    living = attend(q, k, v, wanted=("living",)).living
    assert (living < 0.5).all()
    v[:, 1, at, 3] = odd
    got = selective_attention(q.to(dtype), k.to(dtype), v.to(dtype), backend=backend)
    want = torch.zeros(got.shape, dtype=torch.bool)
    want[:, 1, at:, 3] = True
    assert_not_hidden(~got.isfinite(), want, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head", [0, 2])
@pytest.mark.parametrize("name", ["query", "key"])
def test_a_visible_key_or_query_is_not_hidden(name, head, backend):
    """All rows that depend on it are NaN, and no others, also where everything before is forgotten."""
    n, at = 470, 288  # the first row of a block
    named = {x: torch.randn(1, 4, n, 16, dtype=torch.float64) for x in ("query", "key", "value")}
    named["query"] *= 3
    named[name][:, head, at, 5] = math.nan
    got = selective_attention(**named, backend=backend).isnan().all(-1)
    want = torch.zeros(1, 4, n, dtype=torch.bool)
    want[:, head, at if name == "query" else slice(at, None)] = True
    if head == 0:  # it selects: F is NaN from the row after the one that selected
        want[:, :, at + (1 if name == "query" else 2) :] = True
    assert_not_hidden(got, want, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_finite_shows_in_the_gradients(backend):
    q, k, v = (torch.randn(1, 2, 130, 8, dtype=torch.float64) for _ in range(3))
    v[:, :, 100, 2] = math.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    output = selective_attention(
        *leaves, kernel_options={"tolerance": 0.0}, backend=backend
    )  # a dead key's gradient ends with its life
    dq, dk, _ = torch.autograd.grad(output.sum(), leaves)
    assert dq[:, :, 100:].isnan().all()
    assert dk[:, :, :100].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_that_are_all_minus_infinity_have_no_softmax(backend):
    q, k, v = (torch.ones(1, 1, 100, 4, dtype=torch.float64) for _ in range(3))
    k[..., 0] = -math.inf
    assert causal_attention(q, k, v, window=99, backend=backend).isnan().all()
    assert selective_attention(q, k, v, backend=backend).isnan().all()
    k[:, :, 3] = 1.0  # from here on one key can be attended to
    got = causal_attention(q, k, v, window=200, backend=backend)
    assert got[:, :, :3].isnan().all()
    assert (got[:, :, 3:] == 1).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [selective_attention, causal_attention])
def test_an_infinite_soft_cap_is_none(function, backend):
    x = torch.randn(1, 2, 9, 4, dtype=torch.float64)
    got = function(x, x, x, softcap=math.inf, backend=backend)
    assert torch.equal(got, function(x, x, x, backend=backend))
