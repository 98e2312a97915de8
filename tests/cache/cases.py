"""Random situations for a layer of the cache, and every way to run one.

Hypothesis draws the structure (so that a failure shrinks to the simplest structure), a seed gives the numbers. They are
fp64, where nothing but exact ties is too close for the eviction order.
"""

import importlib
import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn import eviction_order, kept_positions
from selattn.cache import POLICIES, Policy, SlotLayer, attend, make_policy
from selattn.ops import Selection
from selattn.ops.attention import attend_whole
from selattn.ops.backends import plain_cache
from selattn.ops.request import NOTHING, Tokens
from selattn.ops.rules import Rules
from tests.cache.simulation import Run, simulate
from tests.ops.cases import PATTERNS, rows, selections, sequences

attend_module = importlib.import_module("selattn.cache.attention")

DEFAULT = Selection()


@dataclass(repr=False)
class Case:
    """Some tokens, a layer's rules, a budget and a policy. `documents` [B][N] says what is real, and what is packed."""

    tokens: Tokens  # real is not set
    rules: Rules
    budget: int
    policy: str | Policy
    documents: list[list[int | None]]

    def __repr__(self):
        """Without the numbers, so that a failure can be read."""
        shapes = {name: list(x.shape) for name, x in self.tokens._asdict().items() if x is not None}
        return f"{self.policy!r}, budget {self.budget}, {shapes}, {self.documents}, {self.rules}"

    @property
    def size(self):
        return self.tokens.query.shape[2]

    @property
    def real(self):
        return torch.tensor([[d is not None for d in row] for row in self.documents])

    def make_policy(self):
        return self.policy if isinstance(self.policy, Policy) else make_policy(self.policy)

    def layer(self):
        return SlotLayer(self.budget, self.make_policy())

    def cut(self, begin, end):
        """Some of the tokens, as a model hands them over: no mask where all are real."""
        real = self.real[:, begin:end]
        return self.tokens.cut(begin, end)._replace(real=None if real.all() else real)

    def simulate(self):
        return simulate(self.tokens, self.rules, self.budget, self.policy, self.documents)

    def plain(self):
        """The operator with no budget."""
        return attend_whole(self.tokens, self.sequences(), self.rules).output

    def sequences(self):
        """What the operator is told of padding and documents; None if there is nothing to tell."""
        plain = all(len(set(row)) == 1 and row[0] is not None for row in self.documents)
        return None if plain else sequences(self.documents)

    def whole(self, compiled=True):
        """The full forward, its eviction order by the compiled library or in Python."""
        got = self.pruned(backend="auto" if compiled else "reference")
        seen = kept_positions(got.evicted_at, sequences=self.sequences()).tolist()  # [B][P][N][N]
        kept = [[None] * self.size for _ in self.documents]
        for b, row in enumerate(self.documents):
            for i, mine in enumerate(row):
                if mine is not None:
                    places = [j for j in range(i + 1) if row[j] == mine]
                    kept[b][i] = [[t for t, j in enumerate(places) if order[i][j]] for order in seen[b]]
        return Run(kept, got.output)

    def order(self, backend="auto"):
        """[B, P, N] when each token leaves."""
        names = ("selection", "strength", "window", "pattern", "scale", "softcap", "bias")
        return eviction_order(
            self.tokens.query,
            self.tokens.key,
            budget=self.budget,
            policy=self.policy,
            selection_query=self.tokens.selection_query,
            selection_key=self.tokens.selection_key,
            sequences=self.sequences(),
            backend=backend,
            **{name: getattr(self.rules, name) for name in names},
        )

    def pruned(self, wanted=NOTHING, backend="auto"):
        """The full forward with the budget in force."""
        return attend_whole(self.tokens, self.sequences(), self.rules, wanted, backend, self.order(backend))

    def pieces(self, *borders, layer=None):
        """Through a layer, with cuts there; what is kept is known after each piece only."""
        layer = layer or self.layer()
        kept, outputs = [[None] * self.size for _ in self.documents], []
        for begin, end in itertools.pairwise(sorted({0, self.size, *borders})):
            outputs.append(attend(layer, self.cut(begin, end), self.rules).output)
            for row, held in zip(kept, positions(layer), strict=True):
                row[end - 1] = held
        return Run(kept, torch.cat(outputs, -2))

    def one_by_one(self, layer=None):
        """Through a layer, token by token."""
        return self.pieces(*range(self.size), layer=layer)


def positions(layer):
    """[B][P] the positions that a layer keeps, in order."""
    return [[sorted(p for p in order if p >= 0) for order in row] for row in layer.position.tolist()]


def assert_same_run(case, got, want, atol=1e-9):
    """The same tokens kept wherever both tell, and the same output for every real token."""
    for b, row in enumerate(case.documents):
        for i, mine in enumerate(row):
            if mine is not None and got.kept[b][i] is not None:
                assert got.kept[b][i] == want.kept[b][i], f"row {b}, token {i}"
    real = case.real[:, None, :, None]
    assert got.output.isfinite().all()
    assert_close(got.output * real, want.output * real, rtol=0, atol=atol)


@contextmanager
def in_strips(piece, strip):
    """A context in which a prompt is served in pieces, and its eviction order found in strips, of these sizes."""
    with mock.patch.object(attend_module, "PIECE", piece), mock.patch.object(plain_cache, "STRIP", strip):
        yield


def some_case(policy="selective", budget=5, size=12, batch=2, selection=DEFAULT, dtype=torch.float64, **rules):
    """A plain case: no padding, 4 heads of 8 in 2 groups."""
    q, k, v = (2 * torch.randn(batch, heads, size, 8).to(dtype) for heads in (4, 2, 2))
    return Case(Tokens(q, k, v), Rules(selection, **rules), budget, policy, [[0] * size for _ in range(batch)])


class Distances:
    """A bias by positions: a number for each head (or one for all) and each distance, -inf for some of them."""

    def __init__(self, heads, seed, hides):
        chance = torch.Generator().manual_seed(seed)
        self.table = torch.randn(heads, 40, generator=chance, dtype=torch.float64)
        self.table[:, 1:] = self.table[:, 1:].masked_fill(torch.rand(39, generator=chance) < hides, -torch.inf)
        self.said = f"Distances({heads}, {seed}, {hides})"

    def __repr__(self):
        return self.said

    def __call__(self, queries, keys):
        distance = queries[:, :, None] - keys[:, None, :]
        return self.table[:, distance.clamp(0, 39)].movedim(0, 1)


@st.composite
def cases(
    draw,
    policies=(*POLICIES, "selective-per-head", "tova-per-head"),
    kinds=("full", "padded", "holes", "empty"),
    most=20,
):
    """A whole situation."""
    chance = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    B, G, shared = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    H, N = G * shared, draw(st.integers(1, most))
    size = st.sampled_from((1, 3, 4))
    D, Dv = draw(size), draw(size)
    policy = draw(st.sampled_from(policies))

    def normal(*shape):
        return 2 * torch.randn(shape, generator=chance, dtype=torch.float64)

    q, k, v = normal(B, H, N, D), normal(B, G, N, D), normal(B, G, N, Dv)
    sq = sk = None
    selection = draw(st.none() | selections(H) | selections(H))
    if selection is not None and draw(st.sampled_from((False, False, True))):
        selection = Selection(0, selection.relu, selection.protect_first, selection.protect_self, selection.shift)
        masks = draw(st.sampled_from([n for n in range(1, H + 1) if H % n == 0]))
        sq, sk = normal(B, masks, N, 3), normal(B, masks, N, 3)
    often = st.sampled_from((True, True, False))
    rules = Rules(
        selection=selection,
        strength=draw(st.sampled_from((1.0, 1.0, 0.3, 0.0, torch.tensor(0.75)))),
        window=None if draw(often) else draw(st.integers(1, N + 1)),
        pattern=None if draw(often) else draw(PATTERNS),
        scale=draw(st.sampled_from((None, 0.3))),
        softcap=draw(st.sampled_from((None, None, 1.5))),
        bias=draw(
            st.none()
            | st.builds(Distances, st.sampled_from((1, H)), st.integers(0, 99), st.sampled_from((0.0, 0.0, 0.2)))
        ),
    )
    return Case(Tokens(q, k, v, None, sq, sk), rules, draw(st.integers(2, N + 3)), policy, draw(rows(B, N, kinds)))
