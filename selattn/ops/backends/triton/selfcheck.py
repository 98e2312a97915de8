"""Whether the kernels are right on this device: nobody has tried them on all cards, so each user's is asked once.

The first use on a device, in a dtype, with heads of at most 64 or of more features (each has its own configuration),
compares a few small examples with the reference. The result is cached in a file for device, driver and versions,
the text of the kernels included. Until they have passed, "auto" does not take the kernels; where they fail, one warning
says so.

An error is measured, not held against a tolerance: the truth is the reference in fp64, and an error may be as large as
that of the reference in the same precision, times a factor, beside a little rounding. For half precision the factor is
larger: the reference keeps its weights and its output in fp32 for the backward pass, which no flash kernel does. In
decoding and in the eviction order the same tokens must be evicted, and F and the output must be near.
`benchmarks/gpu_check.py` has many more examples.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from selattn.errors import CannotWriteError
from selattn.ops.backends.base import Backend
from selattn.ops.backends.reference import Reference
from selattn.ops.backends.triton import configs
from selattn.ops.eviction import NEVER, Kept, Order, OrderRequest, StepRequest
from selattn.ops.request import AuxRequest, Request, Tokens
from selattn.ops.rules import Rules, compute_dtype
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences
from selattn.utils import files, records

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FOLDER = "triton"  # in the cache folder
HEADS, GROUPS = 4, 2
DIFFERENTIABLE = ("query", "key", "value", "selection_query", "selection_key", "bias", "initial_f")


class Size(NamedTuple):
    """How large an example is, and where it runs."""

    n: int  # tokens
    size: int  # features of a head
    dtype: torch.dtype
    device: torch.device


# Examples: each returns what is wrong with a backend's results, a line for each.
Example = Callable[[Size, Backend], list[str]]


def judge(request: Request, backend: Backend) -> list[str]:
    """What is wrong with the backend's attention: output, what else is wanted, and every gradient."""
    dtype = request.query.dtype
    upstream: dict[str, Tensor] = {}
    given = {name: x for name in DIFFERENTIABLE if (x := getattr(request, name)) is not None}
    truth = _results(request._replace(**{name: x.double() for name, x in given.items()}), Reference(), upstream)
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
    """By name, in fp64: what comes back, and the gradient of every input. `upstream` keeps the gradients drawn once."""
    with torch.enable_grad():
        tensors = {name: x for name in DIFFERENTIABLE if (x := getattr(request, name)) is not None}
        leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
        output, aux, _ = backend.attend(request._replace(**leaves))
        got = {"output": output, **{name: x for name, x in aux._asdict().items() if x is not None}}
        for name, x in got.items():
            chance = torch.Generator().manual_seed(len(name))
            upstream.setdefault(name, torch.randn(x.shape, generator=chance).to(request.query).double())
        came = [upstream[name].to(x.dtype) for name, x in got.items()]
        gradients = torch.autograd.grad(list(got.values()), list(leaves.values()), came, materialize_grads=True)
    return {name: x.detach().double() for name, x in got.items()} | {
        f"d {name}": x.double() for name, x in zip(leaves, gradients, strict=True)
    }


def _tokens(size: Size, seed: int, gain: float = 1.0) -> Tokens:
    """Of numbers that the dtype has, drawn on the CPU, so the same on all devices."""
    chance = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(2, heads, size.n, size.size, generator=chance).to(size.device, size.dtype)
        for heads in (HEADS, GROUPS, GROUPS)
    )
    return Tokens(gain * query, key, value)


def _attention(size: Size, rules: Rules, gain: float = 2.0, **more: Tensor) -> Request:
    query, key, value = _tokens(size, 0, gain)[:3]
    given = {name: x.to(size.device) for name, x in more.items()}
    return Request(query, key, value, rules, AuxRequest(memory=True), **given)  # type: ignore[arg-type]


def judge_sharp(size: Size, backend: Backend) -> list[str]:
    """Logits so large that many columns are masked for good and left out."""
    return judge(_attention(size._replace(n=size.n * 7 // 4), Rules(Selection()), 6.0), backend)


def judge_everything(size: Size, backend: Backend) -> list[str]:
    """Two masks, a strength and a soft cap, over padded and packed rows from which tokens are evicted."""
    index, n = torch.arange(size.n)[None], size.n
    documents = index // torch.tensor([[n // 3], [4 * n // 5]]), index >= torch.tensor([[n // 9], [0]])
    until = (index + torch.tensor([[n // 4], [2 * n // 3]])).view(2, 1, n)
    rules = Rules(Selection((3, 1)), strength=0.7, softcap=5.0)
    start = Sequences.from_documents(*documents).start
    return judge(_attention(size, rules, start=start, until=until), backend)


def judge_bias(size: Size, backend: Backend) -> list[str]:
    """A bias of pairs, for which tiles have another size."""
    shape, chance = (2, HEADS, size.n, size.n), torch.Generator().manual_seed(1)
    bias = torch.randn(shape, generator=chance).to(compute_dtype(size.dtype))
    return judge(_attention(size, Rules(Selection()), bias=bias), backend)


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


def judge_steps(size: Size, backend: Backend, budget: int = 6, count: int = 12) -> list[str]:
    """Decoding, from an empty cache until tokens have been evicted; two rows of a pool of four, not in their order."""
    rules, rows, places = Rules(Selection(1)), torch.tensor([2, 1], device=size.device), (4, GROUPS, budget, size.size)
    pools = []
    for _ in range(2):
        keys, values = (torch.zeros(places, device=size.device, dtype=size.dtype) for _ in range(2))
        position = torch.full((4, 1, budget), -1, dtype=torch.int32, device=size.device)
        f = torch.zeros(4, 1, 1, budget, dtype=compute_dtype(size.dtype), device=size.device)
        pools.append(
            SimpleNamespace(keys=keys, values=values, position=position, f=f, score=f[:, 0, :, :0], selection_keys=None)
        )
    near = 1e-4 if size.dtype == torch.float32 else 8 * torch.finfo(size.dtype).eps
    for i in range(count):
        new, length = _tokens(size._replace(n=1), i), torch.full((2,), i, device=size.device)
        used, policy = min(i + 1, budget), _HighestF()
        requests = (StepRequest(new, rules, pool, rows, length, policy, budget, used) for pool in pools)
        got, want = (each.step(request) for each, request in zip((backend, Reference()), requests, strict=True))
        if not torch.equal(pools[0].position, pools[1].position):
            return [f"in step {i} of decoding another token is evicted"]
        for name, a, b in (("output", got, want), ("F", pools[0].f, pools[1].f)):
            if not (a.double() - b.double()).abs().max() <= near * (1 + b.double().abs().max()):
                return [f"in step {i} of decoding the {name} is off"]
    return []


def judge_order(size: Size, backend: Backend, budget: int = 7) -> list[str]:
    """The eviction order of whole sequences, padded and packed."""
    count = min(size.n, 120)
    index = torch.arange(count)[None]
    ids, real = index // torch.tensor([[count // 2], [count]]), index >= torch.tensor([[3], [0]])
    sequences = Sequences.from_documents(ids, real)
    positions = sequences.positions.masked_fill(~sequences.real, -1).to(size.device)
    until = torch.full((2, 1, count), NEVER, device=size.device)
    f = torch.zeros(2, 1, count, dtype=compute_dtype(size.dtype), device=size.device)
    tokens, rules, before = _tokens(size._replace(n=count), 0), Rules(Selection(1)), Order(until, f, f.clone())
    request = OrderRequest(tokens, rules, tokens.key, None, positions, _HighestF(), budget, before)
    got, want = backend.order(request)[0], Reference().order(request)[0]
    if not torch.equal(got.until, want.until):
        return ["in the eviction order other tokens are evicted"]
    near = 1e-4 * (1 + want.f.abs().max())
    return [] if (got.f - want.f).abs().max() <= near else ["in the eviction order F is off"]


CACHE: dict[str, Example] = {"decoding": judge_steps, "eviction order": judge_order}
EXAMPLES = {**CACHE, "sharp": judge_sharp, "everything": judge_everything, "bias": judge_bias}


def attempt(example: Example, size: Size, backend: Backend) -> list[str]:
    """What is wrong in the example; an error that a kernel raises is wrong, too."""
    try:
        return example(size, backend)
    except torch.OutOfMemoryError:  # which says nothing of the kernels
        raise
    except Exception as error:  # whatever the compiler, or the driver, may raise
        return [f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"]


class Known(NamedTuple):
    """What is cached for a place."""

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
    """The place at which heads with that number of features are computed. `cuda` gets the number of its device."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return Place(device, dtype, configs.size_class(features))


def failure(place: Place, backend: Backend) -> str | None:
    """Why the kernels cannot be trusted there; None if they can. The first time it runs them, and warns if they fail.

    While a CUDA graph is recorded nothing can be tried: what is not known by then is not trusted in that call.
    """
    if place not in _in_process:
        cached = known(place)
        if cached is not None and cached.passed:
            _in_process[place] = None
        elif place.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "it has not been checked on this device yet"
        else:
            _in_process[place] = _check(place, backend)
    return _in_process[place]


def _check(place: Place, backend: Backend) -> str | None:
    """The first thing that is wrong; the result is cached. The caller's modes, autocast and no_grad are set aside."""
    small = place.device.type == "cpu"  # in Triton's interpreter
    size = Size(37 if small else 200, place.size // 4 if small else place.size, place.dtype, place.device)
    wrong = None
    with _disable_current_modes(), torch.inference_mode(False), torch.autocast(place.device.type, enabled=False):
        for name, example in EXAMPLES.items():
            if lines := attempt(example, size, backend):
                wrong = f"{name}: {lines[0]}"
                break
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


def known(place: Place) -> Known | None:
    """The cached result; None if there is none, or the file is damaged."""
    try:
        content = json.loads(_file(place).read_text())
        return Known(bool(content["passed"]), str(content["wrong"]), str(content["date"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(place: Place, wrong: str | None) -> None:
    """Cache the result for later processes; where nothing can be written, they check for themselves."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with suppress(CannotWriteError):
        files.write_json(
            _file(place), {"passed": wrong is None, "wrong": wrong or "", "date": date, **_identity(place)}
        )


def states() -> dict[str, str]:
    """For each dtype and size what is known of this machine's device, in words."""
    if configs.unavailable() is not None or not torch.cuda.is_available():
        return {}
    lines = {}
    for dtype, size in itertools.product(DTYPES, configs.SIZES):
        place = place_of(torch.device("cuda"), dtype, size)
        line, state = "not checked yet: the first use does it", known(place)
        if state is not None:
            line = f"passed on {state.date[:10]}" if state.passed else f"FAILED on {state.date[:10]}: {state.wrong}"
        lines[str(place)] = line
    return lines


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
    """The card's name, with its compute capability."""
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
