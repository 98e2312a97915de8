"""Columns that the compiled backend leaves out because they are forgotten for good: which, and that nobody sees it."""

from math import e, log2

import pytest
import torch
from torch.testing import assert_close

from selattn.ops import Selection, Sequences, selective_attention
from tests.ops.cases import attend

B, N, BLOCK, DEFAULT = 2, 470, 96, 2.0**-24
PACKED = Sequences.from_documents(torch.arange(N)[None] // torch.tensor([[240], [400]]))
PADDED = Sequences.from_mask(torch.arange(N) >= torch.tensor([[30], [0]]))
HOLES = Sequences.from_mask((torch.arange(N) + torch.tensor([[0], [1]])) % 5 > 0)
# Each with inputs so sharp that much of what is old is dead.
KINDS = {
    "default": {},
    "grouped": {"groups": 2},
    "another head": {"selection": Selection(3)},
    "packed": {"sequences": PACKED},
    "padded": {"sequences": PADDED},
    "padding in between": {"sequences": HOLES},
    "window": {"window": 400},
    "soft cap": {"softcap": 20.0},
    "evicted": {"visible_until": torch.arange(N).expand(B, N) + torch.tensor([[330], [400]])},
    "own key evicted": {"visible_until": torch.where(torch.arange(N) % 40 == 39, 0, 1000).expand(B, N)},
    "most keys evicted at once": {"visible_until": torch.where(torch.arange(N) < 150, 1000, 0).expand(B, N)},
    "half strength": {"strength": 0.5},
    "no shift": {"selection": Selection(shift=False)},
    "self not protected": {"selection": Selection(protect_self=False)},
    "first not protected": {"selection": Selection(protect_first=False)},
    "negative scale": {"scale": -0.4},
    "large tau": {"tau": 60.0},
    "odd head sizes": {"size": 13, "value_size": 5},
}
LIVING = {"packed": 0.75, "half strength": 0.6}  # at most; else less than half
FULL = {"own key evicted", "most keys evicted at once"}  # where a row without its own key lets nothing die


def inputs(dtype=torch.float64, groups=4, size=16, value_size=16, gain=3.0):
    q = gain * torch.randn(B, 4, N, size, dtype=torch.float64)
    k = torch.randn(B, groups, N, size, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, torch.randn(B, groups, N, value_size, dtype=torch.float64))]


def situation(kind, dtype=torch.float64):
    options = dict(KINDS[kind])
    leaves = inputs(dtype, **{name: options.pop(name) for name in ("groups", "size", "value_size") if name in options})
    return leaves, options | {"enable_gqa": True}


def results(leaves, options, backend, upstream, tolerance=DEFAULT):
    """The output, M and the gradients, in fp64; and the living share."""
    got = attend(*leaves, **options, tolerance=tolerance, backend=backend, wanted=("memory", "living"))
    loss = sum((x * g).sum() for x, g in zip((got.output, got.memory), upstream, strict=True))
    gradients = torch.autograd.grad(loss, leaves)
    return [x.detach().double() for x in (got.output, got.memory, *gradients)], got.living


def upstreams(leaves):
    return torch.randn(B, 4, N, leaves[2].shape[3]), torch.randn(B, 1, N)


NAMES = ("output", "M", "dq", "dk", "dv")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_is_not_missed(kind):
    """With the default tolerance; and with none nothing is left out."""
    leaves, options = situation(kind)
    upstream = upstreams(leaves)
    got, living = results(leaves, options, "cpu", upstream)
    whole, all_living = results(leaves, options, "cpu", upstream, tolerance=0.0)
    want, _ = results(leaves, options, "reference", upstream)
    assert (all_living == 1).all()
    assert (living == 1).all() if kind in FULL else (living < LIVING.get(kind, 0.5)).all()
    for name, g, x, w in zip(NAMES, got, whole, want, strict=True):
        assert (g - w).abs().max() <= 1e-7 * w.abs().max(), name
        assert (x - w).abs().max() <= 1e-12 * w.abs().max(), name


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_the_mass_that_a_row_loses_is_bounded(tolerance):
    """With values of 1 in a dead column and 0 elsewhere the output is the mass that is missing."""
    q, k, v = (x.detach() for x in inputs())
    ones = torch.ones_like(v)
    got = attend(q, k, v, tolerance=tolerance, backend="cpu", wanted=("living",))
    exact = selective_attention(q, k, v, kernel_options={"tolerance": 0.0}, backend="cpu")
    assert (got.output - exact).abs().max() <= 2 * tolerance * v.abs().max()
    assert (got.output - exact).abs().max() > 0
    closer = attend(q, k, v, backend="cpu", wanted=("living",)).living
    assert (got.living < closer).all()
    assert_close(
        selective_attention(q, k, ones, kernel_options={"tolerance": tolerance}, backend="cpu"),
        ones,
        rtol=0,
        atol=1e-12,
    )


def living_by_hand(q, k, v, F, tolerance, tau, seen, block=BLOCK):
    """The share of pairs that csrc/attention/bounds.h leaves, from its formula, everything in base 2."""
    B, N = F.shape[0], F.shape[2]
    scale, count = log2(e) / q.shape[3] ** 0.5, torch.zeros(B)
    logits = scale * (q @ k.mT)
    own = logits.diagonal(dim1=-2, dim2=-1).maximum(logits[..., 0])  # [B, H, N] the row's own key, or the first
    reach = scale * q.norm(dim=-1)
    least = max(log2(N / tolerance), tau * log2(e))
    size = v.abs().amax(-1)
    more = (size / size.amin(-1, keepdim=True)).log2()
    alive = torch.ones(B, N, dtype=torch.bool)
    for t in range(0, N, block):
        bound = reach[..., t:].amax(-1, keepdim=True) * k.norm(dim=-1) - own[..., t:].amin(-1, keepdim=True) + more
        bound, f = bound.amax(1), log2(e) * F[:, 0, t]
        alive &= ~((f >= least) & (f >= bound + least + 1e-5 * (bound.abs() + f)) & (torch.arange(N) < t))
        count += (alive[:, None] & seen[t : t + block]).sum((1, 2))
    return count / seen.sum()


@pytest.mark.parametrize("tau", [1.0, 60.0])
@pytest.mark.parametrize("tolerance", [DEFAULT, 1e-2, 0.0])
def test_living_share_is_the_one_counted_by_hand(tolerance, tau):
    q, k, v = (x.detach() for x in inputs())
    F = attend(q, k, v, backend="reference", wanted=("f",)).f
    got = attend(q, k, v, tolerance=tolerance, tau=tau, backend="cpu", wanted=("living",)).living
    want = torch.ones(B)
    if tolerance:
        want = living_by_hand(q, k, v, F, tolerance, tau, torch.ones(N, N, dtype=torch.bool).tril())
        assert (want < 0.5).all()
    assert_close(got, want.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("tolerance", [DEFAULT, 1e-3])
@pytest.mark.parametrize("kind", ["default", "grouped", "packed", "soft cap"])
def test_what_a_row_loses_is_little_beside_its_own_values(kind, tolerance):
    """Row by row: values may differ by a factor of 1e16, and the dead ones be the large ones."""
    (q, k, v), options = situation(kind)
    size = 10.0 ** (torch.rand(B, v.shape[1], N, 1, dtype=torch.float64) * 16 - 8)
    old = torch.arange(N)[:, None] < 200
    for large in (size, torch.where(old, 1e8, 1.0)):
        values = v.detach() * large
        given = {"backend": "cpu", **options}
        got = attend(q, k, values, tolerance=tolerance, wanted=("living",), **given)
        exact = selective_attention(q, k, values, kernel_options={"tolerance": 0.0}, **given)
        small = values.abs().amax(-1).amin(-1).repeat_interleave(4 // v.shape[1], 1)[..., None]
        lost, own = (got.output - exact).abs().amax(-1), exact.abs().amax(-1)
        assert (lost <= tolerance * (small + own) + 1e-12 * own).all()
        assert (got.living < 1).any()


@pytest.mark.parametrize(
    "options",
    [
        {"selection": Selection(relu=False)},
        {"selection": Selection(shift=False, protect_self=False)},
        {"wanted": ("living", "final_f")},
    ],
    ids=str,
)
def test_where_a_column_could_come_back_nothing_is_left_out(options):
    """F may fall again; a row's own key may be masked; the final F is that of all columns."""
    q, k, v = (x.detach() for x in inputs())
    options = {"wanted": ("living",), **options}
    got, want = (attend(q, k, v, backend=backend, **options) for backend in ("cpu", "reference"))
    assert got.living.tolist() == [1.0] * B
    assert_close(got.output, want.output, rtol=0, atol=1e-11)
    assert got.final_f is want.final_f is None or (got.final_f - want.final_f).abs().max() < 1e-10


def test_a_first_token_that_the_initial_f_has_masked_keeps_nothing_from_living():
    """The bound may lean on the first token only where its F is 0: an initial F of the caller's may say else."""
    q, k, v = (x.detach() for x in inputs())
    k[:, :, 0] = 20 * q.mean(2)
    q = q + q.mean(2, keepdim=True)
    rows, past = 150, N - 150
    initial_f = torch.rand(B, 1, past, dtype=torch.float64) * 60
    initial_f[..., 0] = 1000.0
    got = selective_attention(q[:, :, past:], k, v, initial_f=initial_f, backend="cpu")
    want = selective_attention(q[:, :, past:], k, v, initial_f=initial_f, backend="reference")
    assert got.shape[2] == rows
    assert (got - want).abs().max() <= 1e-6 * want.abs().max()
