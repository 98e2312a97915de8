"""Whether the kernels are right on this device: nobody has tried them on all cards, so each user's is asked once.

The first use on a device, in a dtype, with heads of at most 64 or of more features (each has its own configuration),
holds a few small examples against the reference. The result is remembered in a file for device, driver and versions,
the text of the kernels included. Until they have passed, "auto" does not take the kernels; where they have not, one
warning says so.

    failure(place, backend)   None if the kernels can be trusted, else what is wrong; checks if nobody has
    known(place)              what is remembered

The rule is that of errors, not of tolerances: the truth is the reference in fp64, and an error may be as large as that
of the reference in the same precision, times a factor, beside a little rounding. For half precision the factor is
larger: the reference keeps its weights and its output in fp32 for the backward pass, which no flash kernel does. Which
token leaves, in decoding and in the eviction order, has to be the same, and F and the output have to be near.
`benchmarks/gpu_check.py` has many more examples.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from selattn.errors import CannotWriteError
from selattn.ops.backends import plain_order, plain_step
from selattn.ops.backends.base import Backend
from selattn.ops.backends.reference import Reference
from selattn.ops.backends.triton import configs
from selattn.ops.order import NEVER, Kept, Order, OrderRequest, StepRequest
from selattn.ops.request import AuxRequest, Request, Tokens
from selattn.ops.rules import Rules, compute_dtype
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences
from selattn.utils import files, records

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FOLDER = "triton"  # in the cache folder
HEADS = 4
DIFFERENTIABLE = ("query", "key", "value", "selection_query", "selection_key", "bias", "initial_f")


class Size(NamedTuple):
    """Of an example: tokens, features of a head, and where it runs."""

    n: int = 300
    size: int = 64
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = torch.device("cuda")


class Situation(NamedTuple):
    """A call of attention, for any number n of tokens. Two rows in the batch, four heads."""

    rules: Rules = Rules(Selection())
    wanted: AuxRequest = AuxRequest(memory=True)
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


def until_rows(n: int) -> Tensor:
    """[2, n] the row from which each token is gone."""
    return torch.arange(n)[None] + torch.tensor([[n // 4], [2 * n // 3]])


def rows_of_tokens(n: int) -> Tensor:
    """[1, n] their numbers."""
    return torch.arange(n)[None]


SITUATIONS = {
    "sharp": Situation(gain=6.0, tokens=1.75),
    "everything": Situation(
        Rules(Selection((3, 1)), strength=0.7, softcap=5.0),
        sequences=lambda n: Sequences.from_documents(
            rows_of_tokens(n) // torch.tensor([[n // 3], [4 * n // 5]]),
            rows_of_tokens(n) >= torch.tensor([[n // 9], [0]]),
        ),
        until=until_rows,
    ),
    "bias": Situation(bias=lambda n: (2, HEADS, n, n)),  # tiles have another size
}


def make(name: str, size: Size, among: Mapping[str, Situation] = SITUATIONS) -> Request:
    """The call of a situation; of numbers that the dtype has, drawn on the CPU, so the same on all devices."""
    s, chance = among[name], torch.Generator().manual_seed(len(name))
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
    ids, real = (
        rows_of_tokens(count) // torch.tensor([[count // 2], [count]]),
        rows_of_tokens(count) >= torch.tensor([[3], [0]]),
    )
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
EXAMPLES = (*OTHERS, *SITUATIONS)


def run(name: str, size: Size, backend: Backend, among: Mapping[str, Situation] = SITUATIONS) -> Outcome:
    """One example: a situation, "decoding" or "eviction order". What a kernel raises is wrong, too."""
    try:
        wrong = OTHERS[name](size, backend) if name in OTHERS else judge(make(name, size, among), backend)
    except torch.OutOfMemoryError:  # which says nothing of the kernels
        raise
    except Exception as error:  # whatever the compiler, or the driver, may raise
        wrong = [f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"]
    return Outcome(name, size.size, str(size.dtype).removeprefix("torch."), wrong)


class Known(NamedTuple):
    """What is remembered of a device and a dtype."""

    passed: bool
    wrong: str  # the first of what was wrong
    date: str


class Place(NamedTuple):
    """Where kernels run, and which: a result is of one place."""

    device: torch.device
    dtype: torch.dtype
    size: int  # of the heads, one of `configs.SIZES`

    def __str__(self) -> str:
        return f"{name_of(self.device)}, {str(self.dtype).removeprefix('torch.')}, heads of up to {self.size}"


_in_process: dict[Place, str | None] = {}


def place_of(device: torch.device, dtype: torch.dtype, features: int) -> Place:
    """The place at which heads of so many features are computed. `cuda` alone gets the number of its device."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return Place(device, dtype, configs.size_class(features))


def failure(place: Place, backend: Backend) -> str | None:
    """Why the kernels cannot be trusted there; None if they can. The first time it runs them, and warns if they fail.

    While a CUDA graph is recorded nothing can be tried: what is not known by then is not trusted in that call.
    """
    if place not in _in_process:
        remembered = known(place)
        if remembered is not None and remembered.passed:
            _in_process[place] = None
        elif place.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "it has not been checked on this device yet"
        else:
            _in_process[place] = _check(place, backend)
    return _in_process[place]


def _check(place: Place, backend: Backend) -> str | None:
    outcomes = (examine(name, place, backend) for name in EXAMPLES)
    wrong = next((f"{x.name}: {x.wrong[0]}" for x in outcomes if x.wrong), None)
    remember(place, wrong)
    if wrong is not None:
        warn_once(
            f"selattn's GPU kernels are wrong on {place}, so that 'auto' takes the slower "
            f"'chunked': {wrong}; please run `python benchmarks/gpu_check.py` and send us its record"
        )
    return wrong


@cache
def warn_once(message: str) -> None:
    """One line, the first time that it is said in a process."""
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def examine(name: str, place: Place, backend: Backend) -> Outcome:
    """One example. What the caller has under way (modes, autocast, no gradients) is set aside."""
    small = place.device.type == "cpu"  # in Triton's interpreter
    size = Size(37 if small else 200, place.size // 4 if small else place.size, place.dtype, place.device)
    with _disable_current_modes(), torch.inference_mode(False), torch.autocast(place.device.type, enabled=False):
        return run(name, size, backend)


def known(place: Place) -> Known | None:
    """What is remembered; None if nothing is."""
    try:
        found = json.loads(_file(place).read_text())
        return Known(bool(found["passed"]), str(found["wrong"]), str(found["date"]))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not whole: it is made anew
        return None


def remember(place: Place, wrong: str | None) -> None:
    """For later processes; where nothing can be written, they check for themselves."""
    content = {
        "passed": wrong is None,
        "wrong": wrong or "",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_identity(place),
    }
    with suppress(CannotWriteError):
        files.write_json(_file(place), content)


def forget() -> None:
    """What this process knows; files stay."""
    _in_process.clear()


def states() -> dict[str, str]:
    """For each dtype and size what is known of this machine's device, in words."""
    if configs.unavailable() is not None or not torch.cuda.is_available():
        return {}
    found = {}
    for dtype, size in itertools.product(DTYPES, configs.SIZES):
        place = place_of(torch.device("cuda"), dtype, size)
        state = known(place)
        said = "not checked yet: the first use does it"
        if state is not None:
            said = f"passed on {state.date[:10]}" if state.passed else f"FAILED on {state.date[:10]}: {state.wrong}"
        found[str(place)] = said
    return found


def identity(device: torch.device) -> dict[str, str]:
    """Device, driver, versions and kernels: what results on a device depend on."""
    return {
        "device": name_of(device),
        "driver": _driver() if device.type == "cuda" else "interpreter",
        **{name: records.version_of(name) for name in ("torch", "triton", "selattn")},
        "kernels": kernels(),
    }


def _identity(place: Place) -> dict[str, str]:
    return {**identity(place.device), "dtype": str(place.dtype), "heads": str(place.size)}


def name_of(device: torch.device) -> str:
    """Of the card, with its compute capability."""
    if device.type != "cuda":
        return "Triton's interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"


def _file(place: Place) -> Path:
    key = hashlib.sha256(json.dumps(_identity(place)).encode()).hexdigest()[:16]
    return files.cache_folder() / FOLDER / f"{key}.json"


@cache
def _driver() -> str:
    """The version of the driver, as far as it tells."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return f"unknown, CUDA {torch.version.cuda}"


@cache
def kernels() -> str:
    """A hash of the text of this folder: with a checkout, versions do not tell what the kernels are."""
    texts = (path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]
