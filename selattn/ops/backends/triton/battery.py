"""Situations in which the kernels are held against the reference: in Triton's interpreter, and on a user's GPU.

The rule is that of errors, not of tolerances: the truth is the reference in fp64, and an error may be as large as that
of the reference in the same precision, times a factor, beside a little rounding. For half precision the factor is
larger: the reference keeps its weights and its output in fp32 for the backward pass, which no flash kernel does.

Who leaves, in decoding and in the eviction order, has to be the same, and F and the output have to be near.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends import plain_order, plain_step
from selattn.ops.backends.base import Backend
from selattn.ops.backends.reference import Reference
from selattn.ops.order import NEVER, Kept, Order, OrderRequest, StepRequest
from selattn.ops.precision import compute_dtype
from selattn.ops.request import AuxRequest, Request
from selattn.ops.rules import Rules
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences
from selattn.ops.tokens import Tokens

HEADS = 4
DIFFERENTIABLE = ("query", "key", "value", "selection_query", "selection_key", "bias", "initial_f")
MEMORY, FINAL = AuxRequest(memory=True), AuxRequest(memory=True, final_f=True)


class Size(NamedTuple):
    """Of an example: tokens, features of a head, and where it runs."""

    n: int = 300
    size: int = 64
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = torch.device("cuda")


class Situation(NamedTuple):
    """A call of attention, for any number n of tokens. Two rows in the batch, four heads."""

    rules: Rules = Rules(Selection())
    wanted: AuxRequest = MEMORY
    gain: float = 2.0  # of the queries
    groups: int = 2
    past: float = 0.0  # keys before the first query, as a share of n
    sequences: Callable[[int], Sequences] | None = None
    until: Callable[[int], Tensor] | None = None
    mask: Callable[[int], Tensor] | None = None
    bias: Callable[[int], tuple[int, ...]] | None = None  # its shape
    separate: int = 0  # masks of a separate form
    value_size: float = 1.0  # as a share of the head's
    tokens: float = 1.0  # more of them


def _until(n: int) -> Tensor:
    return torch.arange(n)[None] + torch.tensor([[n // 4], [2 * n // 3]])


def _rows(n: int) -> Tensor:
    return torch.arange(n)[None]


def _packed(n: int) -> Sequences:
    return Sequences.from_documents(_rows(n) // torch.tensor([[n // 3], [4 * n // 5]]))


SITUATIONS = {
    "default": Situation(),
    "everything": Situation(
        Rules(Selection((3, 1)), strength=0.7, softcap=5.0),
        sequences=lambda n: Sequences.from_documents(
            _rows(n) // torch.tensor([[n // 3], [4 * n // 5]]), _rows(n) >= torch.tensor([[n // 9], [0]])
        ),
        until=_until,
    ),
    "nothing left out": Situation(Rules(Selection(), tolerance=0.0)),
    "sharp": Situation(gain=6.0, tokens=1.75),
    "one head for each key": Situation(groups=4),
    "one key for all heads": Situation(groups=1),
    "another head": Situation(Rules(Selection(3))),
    "padded": Situation(sequences=lambda n: Sequences.from_mask(_rows(n) >= torch.tensor([[n // 2], [0]]))),
    "packed": Situation(sequences=_packed),
    "padding in between": Situation(
        sequences=lambda n: Sequences.from_mask((_rows(n) + torch.tensor([[0], [1]])) % 3 > 0)
    ),
    "nothing but padding": Situation(sequences=lambda n: Sequences.from_mask(torch.zeros(2, n))),
    "window": Situation(Rules(Selection(), window=7)),
    "soft cap": Situation(Rules(Selection(), softcap=2.0)),
    "evicted": Situation(until=lambda n: _until(n).unsqueeze(1)),
    "evicted by each head": Situation(until=lambda n: torch.stack([_until(n), _until(n).flip(-1)], 1)),
    "bias": Situation(bias=lambda n: (2, HEADS, n, n)),
    "bias of keys": Situation(Rules(Selection(), softcap=3.0), bias=lambda n: (1, 1, 1, n)),
    "mask": Situation(mask=lambda n: torch.arange(n * n).view(1, 1, n, n) % 3 > 0),
    "strength": Situation(Rules(Selection(), strength=0.4)),
    "no shift": Situation(Rules(Selection(shift=False))),
    "no relu": Situation(Rules(Selection(relu=False))),
    "nothing protected": Situation(Rules(Selection(protect_first=False, protect_self=False))),
    "two masks": Situation(Rules(Selection((3, 1)))),
    "a mask for each head": Situation(Rules(Selection((3, 1, 1, 0))), gain=6.0),
    "separate form": Situation(separate=2),
    "separate form, biases of heads": Situation(separate=2, bias=lambda n: (1, HEADS, n, n)),
    "separate form, masks of heads": Situation(
        separate=2,
        until=lambda n: torch.stack([_until(n), _until(n).flip(-1)], 1),
        mask=lambda n: torch.arange(HEADS * n * n).view(1, HEADS, n, n) % 7 > 3,
    ),
    "initial F": Situation(wanted=FINAL, past=0.6),
    "initial F, window": Situation(Rules(Selection(), window=6), FINAL, past=0.1),
    "initial F, not wanted": Situation(gain=6.0, past=1.1),
    "odd sizes": Situation(value_size=0.6),
    "standard": Situation(Rules(), AuxRequest()),
    "standard, window": Situation(Rules(window=9), AuxRequest(), sequences=_packed),
}


def make(name: str, size: Size) -> Request:
    """The call of that situation; of numbers that the dtype has, drawn on the CPU, so the same on all devices."""
    s, chance = SITUATIONS[name], torch.Generator().manual_seed(len(name))
    n = int(size.n * s.tokens)
    past, features = int(n * s.past), size.size

    def normal(*shape: int, dtype: torch.dtype = size.dtype) -> Tensor:
        return torch.randn(shape, generator=chance).to(dtype)

    exact = compute_dtype(size.dtype)
    made = {
        "query": s.gain * normal(2, HEADS, n, features),
        "key": normal(2, s.groups, n + past, features),
        "value": normal(2, s.groups, n + past, max(1, int(features * s.value_size))),
        "start": None if s.sequences is None else s.sequences(n).start,
        "until": None if s.until is None else s.until(n).view(2, -1, n),
        "mask": None if s.mask is None else s.mask(n),
        "bias": None if s.bias is None else normal(*s.bias(n), dtype=exact),
    }
    if s.separate:
        made["selection_query"] = normal(2, s.separate, n, 5)
        made["selection_key"] = normal(2, s.separate, n + past, 5)
    if past:
        masks = s.rules.masks(made.get("selection_query"))
        made["initial_f"] = torch.cat([normal(2, masks, past, dtype=exact).abs(), torch.zeros(2, masks, n)], -1)
    placed = {key: None if x is None else x.to(size.device) for key, x in made.items()}
    return Request(**placed, rules=s.rules, wanted=s.wanted)  # type: ignore[arg-type]


def judge(request: Request, backend: Backend) -> list[str]:
    """What is wrong with the backend's results: output, M, final F and every gradient. A line for each."""
    dtype = request.query.dtype
    upstream: dict[str, Tensor] = {}
    given = {name: x for name in DIFFERENTIABLE if (x := getattr(request, name)) is not None}
    exact = request._replace(**{name: x.double() for name, x in given.items()})
    truth = _results(exact, Reference(), upstream)
    plain = _results(request, Reference(), upstream)
    got = _results(request, backend, upstream)
    factor, little = (2.0 if dtype == torch.float32 else 4.0), 8 * torch.finfo(dtype).eps
    # Of a single key the gradient is 0, as a difference of two numbers that fp32 rounds.
    most = max(t.norm() for name, t in truth.items() if name.startswith("d "))
    least = 8 * torch.finfo(torch.float32).eps * most
    wrong = []
    for name, t in truth.items():
        if got[name].shape != t.shape:
            wrong.append(f"{name} has the shape {list(got[name].shape)}, not {list(t.shape)}")
            continue
        error, allowed = (got[name] - t).norm(), factor * (plain[name] - t).norm() + little * t.norm()
        allowed = allowed + (least if name.startswith("d ") else 0.0)
        if not error <= allowed:
            wrong.append(f"{name} is off by {error:.3g}, allowed {allowed:.3g}")
    return wrong


def _results(request: Request, backend: Backend, upstream: dict[str, Tensor]) -> dict[str, Tensor]:
    """By name, in fp64: what comes back, and the gradient of every input, for gradients that are drawn once."""
    with torch.enable_grad():
        tensors = {name: x for name in DIFFERENTIABLE if (x := getattr(request, name)) is not None}
        leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
        output, aux, _ = backend.attend(request._replace(**leaves))
        got = {"output": output, **{name: x for name, x in aux._asdict().items() if x is not None}}
        for name, x in got.items():
            chance = torch.Generator().manual_seed(len(name))
            upstream.setdefault(name, torch.randn(x.shape, generator=chance).to(request.query).double())
        came = [upstream[name].to(x.dtype) for name, x in got.items()]
        found = torch.autograd.grad(list(got.values()), list(leaves.values()), came, materialize_grads=True)
    gradients = {f"d {name}": x.double() for name, x in zip(leaves, found, strict=True)}
    return {name: x.detach().double() for name, x in got.items()} | gradients


class _HighestF:
    """The paper's policy, as backends see it."""

    name, per_head, leaves_early, needs_weights, needs_f = "selective", False, False, False, True

    def rank(self, kept: Kept) -> Tensor:
        return kept.f.expand_as(kept.position)

    def leaves(self, kept: Kept) -> Tensor | None:
        return None

    def update(self, score: Tensor, weights: Tensor) -> Tensor:
        return score

    def compiled(self) -> tuple[str, float] | None:
        return "POLICY_SELECTIVE", 0.0


@dataclass
class _Slots:
    """An empty layer of a cache."""

    keys: Tensor
    values: Tensor
    position: Tensor
    f: Tensor
    score: Tensor
    selection_keys: Tensor | None = None


def _tokens(count: int, size: Size, seed: int) -> Tokens:
    chance = torch.Generator().manual_seed(seed)
    heads = (HEADS, 2, 2)
    drawn = (torch.randn(2, h, count, size.size, generator=chance).to(size.device, size.dtype) for h in heads)
    return Tokens(*drawn)


def judge_steps(size: Size, backend: Backend, budget: int = 6, count: int = 12) -> list[str]:
    """What is wrong with decoding, from an empty cache on until tokens have left."""
    rules, exact = Rules(Selection(1)), compute_dtype(size.dtype)
    rows = torch.tensor([2, 1], device=size.device)  # of a pool with four; the reference has the rows alone

    def slots(count: int) -> _Slots:
        place = torch.zeros(count, 2, budget, size.size, device=size.device, dtype=size.dtype)
        position = torch.full((count, 1, budget), -1, dtype=torch.int32, device=size.device)
        f = torch.zeros(count, 1, 1, budget, dtype=exact, device=size.device)
        return _Slots(place, place.clone(), position, f, f[:, 0, :, :0])

    pool, alone = slots(4), slots(2)
    near = 1e-4 if size.dtype == torch.float32 else 8 * torch.finfo(size.dtype).eps
    for i in range(count):
        new, used = _tokens(1, size, i), min(i + 1, budget)
        length = torch.full((2,), i, device=size.device)
        got = backend.step(StepRequest(new, rules, pool, rows, length, _HighestF(), budget, used))
        want = plain_step.step(StepRequest(new, rules, alone, None, length, _HighestF(), budget, used))
        if not torch.equal(pool.position[rows], alone.position):
            return [f"in step {i} of decoding another token is evicted"]
        for name, a, b in (("output", got, want), ("F", pool.f[rows], alone.f)):
            if not (a.double() - b.double()).abs().max() <= near * (1 + b.double().abs().max()):
                return [f"in step {i} of decoding the {name} is off"]
    return []


def judge_order(size: Size, backend: Backend, budget: int = 7) -> list[str]:
    """What is wrong with the eviction order of whole sequences, padded and packed."""
    count, exact = min(size.n, 120), compute_dtype(size.dtype)
    ids, real = _rows(count) // torch.tensor([[count // 2], [count]]), _rows(count) >= torch.tensor([[3], [0]])
    sequences = Sequences.from_documents(ids, real)
    positions = sequences.positions.masked_fill(~sequences.real, -1).to(size.device)
    until = torch.full((2, 1, count), NEVER, device=size.device)
    f = torch.zeros(2, 1, count, dtype=exact, device=size.device)
    tokens = _tokens(count, size, 0)
    before = Order(until, f, f.clone())
    request = OrderRequest(tokens, Rules(Selection(1)), tokens.key, None, positions, _HighestF(), budget, before)
    got, want = backend.order(request)[0], plain_order.order(request)[0]
    if not torch.equal(got.until, want.until):
        return ["in the eviction order other tokens leave"]
    near = 1e-4 * (1 + want.f.abs().max())
    return [] if (got.f - want.f).abs().max() <= near else ["in the eviction order F is off"]


class Outcome(NamedTuple):
    """What came of one example: nothing `wrong`, or a line for each thing."""

    name: str
    size: int
    dtype: str
    wrong: list[str]


OTHERS: dict[str, Callable[[Size, Backend], list[str]]] = {"decoding": judge_steps, "eviction order": judge_order}
LENGTHS = (1, 2, 63, 64, 65, 1000)  # around the borders of blocks


def whole(device: torch.device) -> list[tuple[str, Size]]:
    """All examples for a device: everything in every dtype, for heads of 64 and 128; lengths and sizes that break.

    In Triton's interpreter, on the CPU, they are small, and there is no bf16.
    """
    names = (*SITUATIONS, *OTHERS)
    if device.type == "cpu":
        found = [(name, Size(37, 16, torch.float32, device)) for name in names]
        found += [("default", Size(n, 16, torch.float32, device)) for n in LENGTHS[:-1]]
        return [*found, ("default", Size(37, 16, torch.float16, device))]
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found += [(name, Size(300, size, dtype, device)) for size in (64, 128) for name in names]
        found += [("default", Size(n, 64, dtype, device)) for n in LENGTHS]
        found += [("default", Size(300, size, dtype, device)) for size in (1, 16, 40, 80)]
    return found


def run(name: str, size: Size, backend: Backend) -> Outcome:
    """One example: a situation, "decoding" or "eviction order". What a kernel raises is wrong, too."""
    try:
        wrong = OTHERS[name](size, backend) if name in OTHERS else judge(make(name, size), backend)
    except torch.OutOfMemoryError:  # which says nothing of the kernels
        raise
    except Exception as error:  # whatever the compiler, or the driver, may raise
        wrong = [f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"]
    return Outcome(name, size.size, str(size.dtype).removeprefix("torch."), wrong)
