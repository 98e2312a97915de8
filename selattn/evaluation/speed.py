"""Speed of the attention backends, relative to PyTorch's flash attention, and of decoding, with the cache's bytes.

found = bench([512, 2048])
[(row.n, row.backend, row.forward_ratio) for row in found.rows]

Times are compared as ratios: rivals run in turn in one process, so that what else the machine does hits all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.cache import Budgets, Policy, import_policy
from selattn.errors import NotFiniteError, SelattnError
from selattn.models.protocols import LanguageModel
from selattn.ops import AuxRequest, backends, selective_attention
from selattn.utils import native
from selattn.utils.memory import check_fits
from selattn.utils.progress import Progress

RIVAL = "flash"  # PyTorch's scaled_dot_product_attention(is_causal=True)
CHECK_LENGTH = 333
REFERENCE_LIMIT = 2048  # the reference's N x N matrices get slow, and large
WORST = 1e-4  # an error, relative to the largest number, above which a result counts as wrong
Name = TypeVar("Name", bound=Hashable)


def seconds(rivals: dict[Name, Callable[[], object]], repeats: int) -> dict[Name, list[float]]:
    """The seconds of each rival, over rounds in which each runs once; a first round warms up and is not counted."""
    times: dict[Name, list[float]] = {name: [] for name in rivals}
    for turn in range(repeats + 1):
        for name, run in rivals.items():
            began = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - began)
    return times


def medians(rivals: dict[Name, Callable[[], object]], repeats: int) -> dict[Name, float]:
    """The median seconds of each rival; see `seconds`."""
    return {name: statistics.median(times) for name, times in seconds(rivals, repeats).items()}


class Shape(NamedTuple):
    """[batch, heads, N, dim] of query, key and value."""

    batch: int = 1
    heads: int = 12
    dim: int = 64
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class ShapeRecord:
    """The same for a record."""

    batch: int
    heads: int
    dim: int
    dtype: str


@dataclass(frozen=True)
class Timing:
    """One backend at one length, or the rival: medians, and how many times the rival's in the same run."""

    n: int
    backend: str
    forward_ms: float
    both_ms: float  # forward and backward
    forward_ratio: float
    both_ratio: float
    living: float  # the share of pairs that are not masked for good


@dataclass(frozen=True)
class Bench:
    """The record of `selattn bench`: the rival first, then each backend, at each length."""

    shape: ShapeRecord
    forgets: bool  # random inputs; else nothing is ever selected, which is the worst case
    target: str | None  # the instruction set of the compiled library; None if it is not built
    rows: tuple[Timing, ...]


def bench(
    lengths: Sequence[int],
    shape: Shape | None = None,
    *,
    forgets: bool = True,
    repeats: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> Bench:
    """Check every backend against the reference, and time those that are right.

    Args:
        lengths: N.
        shape: of query, key and value.
        forgets: random inputs; else inputs that never select.
        repeats: rounds in which each backend runs once; the median counts.
        seed: of the inputs.
        progress: shows the progress; None shows nothing.
    """
    shape = shape or Shape()
    check_memory(lengths, shape, REFERENCE_LIMIT)
    names = [name for name, missing in backends().items() if missing is None and name != "sdpa"]  # which has no F
    progress = progress or Progress()
    progress.begin(len(names) + len(lengths), "backends and lengths")
    for name in names:
        check(name, inputs(CHECK_LENGTH, shape, forgets, seed))
        progress.advance()
    rows: list[Timing] = []
    for n in lengths:
        tensors = inputs(n, shape, forgets, seed)
        some = [name for name in names if name != "reference" or n <= REFERENCE_LIMIT]
        rows += measure(tensors, some, repeats)
        progress.advance()
    progress.end()
    recorded = ShapeRecord(*shape[:3], str(shape.dtype).removeprefix("torch."))
    return Bench(recorded, forgets, native.target(), tuple(rows))


def check_memory(lengths: Iterable[int], shape: Shape, reference_limit: int) -> None:
    """Raise for sizes that do not fit into the free memory.

    A low estimate: query, key, value, the output and their gradients, the whole matrices of `reference` in fp64, and
    the F of all pairs that `sdpa` makes.
    """
    rows = shape.batch * shape.heads
    for n in (CHECK_LENGTH, *lengths):
        needed = 8 * rows * n * shape.dim * shape.dtype.itemsize
        needed += 2 * rows * n * n * 8 if n <= reference_limit else shape.batch * n * n * 4
        what = f"{shape.batch} x {shape.heads} heads of {shape.dim} at N = {n:,} need"
        check_fits(needed, what, "choose smaller sizes")


def inputs(n: int, shape: Shape, forgets: bool, seed: int) -> tuple[Tensor, ...]:
    """query, key, value and the output's gradient; random, or such that they never select."""
    generator = torch.Generator().manual_seed(seed)
    size = (shape.batch, shape.heads, n, shape.dim)
    query, key, value, gradient = (torch.randn(size, generator=generator) for _ in range(4))
    if not forgets:  # all logits of the selecting head are negative
        query[:, 0], key[:, 0] = -query[:, 0].abs(), key[:, 0].abs()
    made = (x.to(shape.dtype) for x in (query, key, value))
    return (*(x.requires_grad_() for x in made), gradient.to(shape.dtype))


def run(name: str, tensors: tuple[Tensor, ...], backward: bool, **options: Any) -> list[Tensor]:
    """One call of the backend (or of the rival, standard attention), with gradients if wanted."""
    query, key, value, gradient = tensors
    with torch.set_grad_enabled(backward):
        if name == RIVAL:
            output = nnf.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            output = selective_attention(query, key, value, backend=name, **options)
        return [output, *torch.autograd.grad(output, (query, key, value), gradient)] if backward else [output]


def check(name: str, tensors: tuple[Tensor, ...]) -> None:
    """Output and gradients against the reference in fp64: no times for wrong results."""
    exact = tuple(x.detach().double().requires_grad_(x.requires_grad) for x in tensors)
    allowed = WORST if tensors[0].dtype in (torch.float32, torch.float64) else 0.05
    for found, true in zip(run(name, tensors, True), run("reference", exact, True), strict=True):
        worst = ((found.double() - true).abs().max() / true.abs().max()).item()
        if not worst < allowed:
            raise SelattnError(f"backend {name!r} is wrong by {worst:.1e}: no times are printed for wrong results")


def living_share(tensors: tuple[Tensor, ...]) -> float:
    """The share of pairs that `cpu` computes, 1 where it is not built."""
    query, key, value = tensors[:3]
    if backends()["cpu"] is not None:
        return 1.0
    with torch.no_grad():
        _, aux = selective_attention(query, key, value, return_aux=AuxRequest(living=True), backend="cpu")
    assert aux.living is not None
    return aux.living.mean().item()


def measure(tensors: tuple[Tensor, ...], names: Sequence[str], repeats: int) -> list[Timing]:
    """A row for each backend, the rival first."""
    rivals, living = (RIVAL, *names), living_share(tensors)
    forward, both = (
        medians({name: partial(run, name, tensors, backward) for name in rivals}, repeats) for backward in (False, True)
    )
    return [
        Timing(
            n=tensors[0].shape[2],
            backend=name,
            forward_ms=1e3 * forward[name],
            both_ms=1e3 * both[name],
            forward_ratio=forward[name] / forward[RIVAL],
            both_ratio=both[name] / both[RIVAL],
            living=living,
        )
        for name in rivals
    ]


@dataclass(frozen=True)
class Decoding:
    """Time of a step and bytes of the cache when the context is nearly full."""

    tokens_per_second: float  # of all sequences of the batch together, in the median step
    quartiles: tuple[float, float]  # the same for the slower and the faster quarter of the steps
    cache_bytes: int  # all that the cache holds, with F and positions
    full_bytes: int  # keys and values in a cache that evicts nothing
    batch: int
    context: int  # tokens at the end


def measure_decoding(
    model: LanguageModel,
    context: int,
    batch: int = 1,
    steps: int = 32,
    seed: int = 0,
    budgets: Budgets | None = None,
    policy: str | Policy | None = None,
) -> Decoding:
    """Fill a cache with random tokens up to the last `steps`, then decode these one by one.

    Args:
        model: in evaluation mode.
        context: tokens at the end.
        batch: sequences at a time.
        steps: how many are timed.
        seed: of the tokens.
        budgets: K_l; None for the model's own.
        policy: None for the model's own.
    """
    steps = min(steps, context - 1)
    ids = torch.randint(model.description.vocab_size, (batch, context), generator=torch.Generator().manual_seed(seed))
    ids = ids.to(model.device)
    cache, seconds = model.new_cache(budgets, None if policy is None else import_policy(policy)), []
    with torch.inference_mode():
        model(ids[:, : context - steps], past_key_values=cache, use_cache=True, logits_to_keep=1)
        for place in range(context - steps, context):
            began = time.perf_counter()
            found = model(ids[:, place : place + 1], past_key_values=cache, use_cache=True)
            _wait(model.device)
            seconds.append(time.perf_counter() - began)
    if bool(found.logits.isnan().any()):
        raise NotFiniteError("the logits of the next token are NaN")
    fast, middle, slow = statistics.quantiles(seconds, n=4, method="inclusive") if steps > 1 else 3 * seconds
    speeds = batch / middle, (batch / slow, batch / fast)
    return Decoding(*speeds, cache.nbytes(), cache.full_nbytes(), batch, context)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
