"""Random situations for the operator: shapes, sequences, masks, switches, and what is asked for, all at once.

Hypothesis draws the structure (so that a failure shrinks to the simplest structure), a seed gives the numbers.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.ops import AuxRequest, Fixed, Selection, Sequences, Strided, attention, selective_attention
from selattn.ops.backends import chunked
from selattn.ops.request import Attention
from selattn.ops.rules import COMBINE

BACKENDS = ("reference", "chunked", "cpu")  # of selective attention
NAMES = ("output", "f", "memory", "final_f")
LENGTHS = (1, 2, 31, 33, 63, 111, 128, 129)  # strips are 32 to 128 wide
# The compiled backend's borders: groups of 4 and 12 keys, panels of 12 or 24 queries, blocks of 96, chunks of 192 keys.
TILED = (1, 5, 11, 12, 13, 23, 25, 95, 96, 97, 191, 193, 289)
SIZES = (1, 3, 4, 7, 16)  # of heads
TILED_SIZES = (1, 4, 7, 8, 16, 17, 33)
SHORT = tuple(range(1, 8))
# (STRIP_WIDTHS, STRIP_ELEMENTS): as shipped; and narrow, so that short sequences have many borders.
SHIPPED = (chunked.STRIP_WIDTHS, chunked.STRIP_ELEMENTS)
STRIPS = (SHIPPED, ((1, 1), 1), ((3, 5), 1 << 21), ((2, 8), 100))
PATTERNS = st.one_of(
    st.builds(Strided, st.integers(1, 5), st.sampled_from(COMBINE)),
    st.integers(1, 5).flatmap(lambda l: st.builds(Fixed, st.just(l), st.integers(1, l), st.sampled_from(COMBINE))),
)


# What a backend gives beside the output; the compiled one never holds F. All its refusals are in test_errors.py.
GIVES = {"cpu": ("memory", "final_f")}


def returns(backend, *names):
    """The argument of `attend` for these results, but for those that the backend does not give; default: for all."""
    given = GIVES.get(backend, ("f", "memory", "final_f"))
    return {"wanted": tuple(name for name in names or given if name in given)}


class Got(NamedTuple):
    """The output and what else was wanted."""

    output: Any
    f: torch.Tensor | None = None
    memory: torch.Tensor | None = None
    final_f: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    living: torch.Tensor | None = None


def attend(*tensors, wanted=(), tolerance=None, **options):
    """Selective attention, with all that is wanted in one tuple."""
    if tolerance is not None:
        options["kernel_options"] = {"tolerance": tolerance}
    asked = AuxRequest(**dict.fromkeys(wanted, True))
    output, aux = selective_attention(*tensors, return_aux=asked, **options)
    return Got(output, *aux)


def only(backends, *refused):
    """These backends without the ones that refuse what a test is about."""
    return [name for name in backends if name not in refused]


def examples(factor):
    """That many times the number of examples of the profile in use."""
    return settings(max_examples=int(factor * settings.default.max_examples))


@dataclass
class Case:
    """One call of the operator. `inputs` are differentiable, `documents` is what `options["sequences"]` says."""

    inputs: dict[str, torch.Tensor]
    options: dict[str, Any]
    documents: list[list[int | None]] | None
    seed: int
    strips: Any = SHIPPED
    upstream: set[str] = field(default_factory=lambda: {"output"})  # the results that the loss depends on

    def in_strips(self):
        """A context in which the strips have this case's size."""
        return mock.patch.multiple(chunked, STRIP_WIDTHS=self.strips[0], STRIP_ELEMENTS=self.strips[1])

    def result(self, backend, inputs=None, **more):
        """What the operator gives for this case; for other numbers if `inputs` are given. No column is left out."""
        wanted = {*self.options.get("wanted", ()), *more.pop("wanted", ())}
        more = {"tolerance": 0.0, "backend": backend} | self.options | more | {"wanted": wanted}
        with self.in_strips():
            return attend(**(inputs or self.inputs), **more)

    def run(self, backend, upstream=None, gradients=True):
        """By name: every result that was asked for, and the gradient of every input.

        The upstream gradients are random, for the results named in `self.upstream`, unless they are given by name.
        """
        leaves = {name: x.detach().clone().requires_grad_(gradients) for name, x in self.inputs.items()}
        got = self.result(backend, leaves)._asdict()
        got = {name: got[name] for name in NAMES if got[name] is not None}
        if not gradients:
            return got
        if upstream is None:
            chance = torch.Generator().manual_seed(self.seed)
            upstream = {name: torch.randn(x.shape, generator=chance, dtype=torch.float64) for name, x in got.items()}
            upstream = {name: x for name, x in upstream.items() if name in self.upstream}
        loss = sum((got[name] * x).sum() for name, x in upstream.items())
        with self.in_strips():
            gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return got | {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}

    def differentiable(self, backend):
        """Whether the backend gives gradients for it: the compiled one has none through an initial or final F."""
        return backend != "cpu" or not ("initial_f" in self.inputs or "final_f" in self.options.get("wanted", ()))

    def request(self):
        """The `Request` that the backends are given."""
        with mock.patch.object(attention.dispatch, "attend", side_effect=lambda request, _: Attention(request)) as seen:
            attend(**self.inputs, **self.options)
        return seen.call_args.args[0]

    def definition(self):
        """The keyword arguments of `literal.definition` that say the same."""
        x, o = self.inputs, self.options
        (B, H, N, _), (G, M) = x["query"].shape, x["key"].shape[1:3]
        bool_mask, until, chosen = o.get("attn_mask"), o.get("visible_until"), o["selection"]
        names = ("query", "key", "value", "selection_query", "selection_key", "initial_f")
        return {name: x[name] for name in names if name in x} | {
            "documents": self.documents,
            "bias": x["attn_mask"].expand(B, H, N, M) if "attn_mask" in x else None,
            "mask": None if bool_mask is None else bool_mask.expand(B, H, N, M),
            "until": None
            if until is None
            else until.expand(B, G, M)
            if until.ndim == 3
            else until[:, None].expand(B, G, M),
            "heads": chosen.heads,
            **{name: getattr(chosen, name) for name in ("relu", "protect_first", "protect_self", "shift")},
            **{name: o[name] for name in ("scale", "softcap", "window", "tau")},
            "strength": float(o["strength"]),
        }


def assert_same(got, want, rtol=1e-9, atol=1e-10):
    """Every named tensor of `want` is there and equal."""
    assert got.keys() == want.keys()
    for name, x in want.items():
        assert_close(got[name], x, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@st.composite
def rows(draw, batch, keys, kinds=("full", "padded", "packed", "scattered", "empty")):
    """[B][M] document ids, None for padding: on either side, anywhere (holes, scattered), none, nothing else."""
    kinds = st.sampled_from(kinds)
    ids = []
    for _ in range(batch):
        kind = draw(kinds)
        cuts = sorted(draw(st.lists(st.integers(0, keys), max_size=4))) if kind in ("packed", "scattered") else []
        row = [sum(cut <= j for cut in cuts) for j in range(keys)]
        if kind in ("holes", "scattered"):
            pads = draw(st.sets(st.integers(0, keys - 1)))
            row = [None if j in pads else d for j, d in enumerate(row)]
        elif kind != "full":
            left, right = (keys, 0) if kind == "empty" else (draw(st.integers(0, keys // 2)) for _ in range(2))
            row = [None if j < left or j >= keys - right else d for j, d in enumerate(row)]
        ids.append(row)
    return ids


def sequences(ids):
    """The same as the operator takes it."""
    given = torch.tensor([[-1 if d is None else d for d in row] for row in ids])
    # A document keeps its id over its padding: a change of id is a border.
    whole = given.clone()
    for j in range(1, whole.shape[1]):
        whole[:, j] = torch.where(given[:, j] < 0, whole[:, j - 1], given[:, j])
    return Sequences.from_documents(whole, given >= 0)


@st.composite
def selections(draw, heads):
    """Every switch, and one or several selecting heads."""
    head = st.integers(0, heads - 1)
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    several = st.sampled_from(divisors).flatmap(lambda n: st.tuples(*[head] * n))
    on = st.sampled_from((True, True, False))
    chosen = draw(st.one_of(st.just(0), head, several))
    return Selection(chosen, draw(on), draw(on), draw(on), draw(on))


@st.composite
def cases(draw, lengths=LENGTHS, all_returns=False, backend="reference"):
    """A whole situation; for "cpu" one that it does not refuse."""
    everything = backend != "cpu"
    seed = draw(st.integers(0, 2**31))
    chance = torch.Generator().manual_seed(seed)
    maybe = st.booleans()
    B, G, shared = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    H, N = G * shared, draw(st.sampled_from(lengths))
    continues = everything or all_returns or draw(st.sampled_from((False, False, True)))
    past = draw(st.sampled_from((0, 0, 1, min(N, 40)))) if continues else 0
    M, size = N + past, st.sampled_from(SIZES if everything else TILED_SIZES)
    D, Dv = draw(size), draw(size)

    def normal(*shape):
        return torch.randn(shape, generator=chance, dtype=torch.float64)

    def heads_of(heads, length, size):  # as a model gives them: [B, length, heads, size] seen through a transpose
        return normal(B, length, heads, size).transpose(1, 2) if transposed else normal(B, heads, length, size)

    transposed = draw(maybe)
    inputs = {"query": 2 * heads_of(H, N, D), "key": heads_of(G, M, D), "value": heads_of(G, M, Dv)}
    chosen = draw(selections(H))
    if draw(st.sampled_from((False, False, True))):
        chosen = Selection(0, chosen.relu, chosen.protect_first, chosen.protect_self, chosen.shift)
        masks = draw(st.sampled_from([n for n in range(1, H + 1) if H % n == 0]))
        inputs |= {"selection_query": heads_of(masks, N, 3), "selection_key": heads_of(masks, M, 3)}
    masks = inputs["selection_query"].shape[1] if "selection_query" in inputs else len(chosen.heads)
    if past:
        inputs["initial_f"] = normal(B, masks, past).abs()

    documents = draw(st.none() | rows(B, M))
    options = {
        "enable_gqa": shared > 1,
        "selection": chosen,
        "sequences": None if documents is None else sequences(documents),
        "scale": draw(st.sampled_from((None, 0.3))),
        "softcap": draw(st.sampled_from((None, None, 2.0))),
        "window": draw(st.none() | st.integers(1, M + 1)),
        "strength": draw(st.sampled_from((1.0, 1.0, 0.3, 0.0, torch.tensor(0.7)))),
        "tau": draw(st.sampled_from((1.0, 0.4, 6.0))),
    }
    kind = draw(st.sampled_from((None, "shared", "each")))
    if kind:
        shape = (B, M) if kind == "shared" else (B, G, M)
        options["visible_until"] = torch.randint(-1, M + M // 2 + 2, shape, generator=chance)
    kind = draw(st.sampled_from((None, None, "bias", "bool" if everything or documents is None else None)))
    if kind:
        full = [n if draw(maybe) else 1 for n in (B, H, N, M)]
        full = full if everything or kind == "bias" else [full[0], 1, 1, full[3]]
        if kind == "bias":
            holes = torch.rand(full, generator=chance) < draw(st.sampled_from((0.0, 0.2)))
            inputs["attn_mask"] = normal(*full).masked_fill(holes, -torch.inf)
        else:
            options["attn_mask"] = torch.rand(full, generator=chance) < 0.7
            if documents is None and full[1:3] == [1, 1]:  # then it is a padding mask
                documents = [
                    [0 if x else None for x in row] for row in options["attn_mask"].expand(B, 1, 1, M)[:, 0, 0].tolist()
                ]
    can_ask = GIVES.get(backend, ("f", "memory", "final_f")) if continues else ("memory",)
    asked = {name for name in can_ask if all_returns or draw(maybe)}
    options["wanted"] = tuple(sorted(asked))
    upstream = {name for name in ("output", *sorted(asked)) if draw(st.sampled_from((True, True, False)))} or {"output"}
    upstream = upstream if everything else upstream - {"final_f"} or {"output"}
    return Case(inputs, options, documents, seed, draw(st.sampled_from(STRIPS)), upstream)
