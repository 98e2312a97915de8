"""Times of the GPU kernels, flash attention, FlexAttention and the paper's pseudo-code: `python benchmarks/gpu.py`.

    triton      our kernels, with random inputs, where columns die, and where nothing is ever forgotten
    flash       scaled_dot_product_attention(is_causal=True): standard attention, without F
    flex        F materialised by plain operators, and FlexAttention, compiled, whose score_mod subtracts it
    literal     the paper's pseudo-code

Every time is a median over rounds in which each runs once, by the device's own clock, with the second-level cache
emptied in between; ratios are within one run. Results are checked against the reference first: wrong ones
get no times. Neither does a rival that does not fit the device's memory; the record says so.

Without a GPU, `--dry-run` tries all of it on the CPU in Triton's interpreter, at a size that tells nothing about speed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from pseudo_code import literal
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as nnf

from selattn.errors import SelattnError
from selattn.evaluation.speed import Shape, check, inputs, run
from selattn.ops import AuxRequest, selective_attention
from selattn.ops.backends.triton import configs, selfcheck
from selattn.utils import records
from selattn.utils.typed import to_json

FLUSHED = 256 << 20  # bytes written between two calls, more than any cache has


@dataclass(frozen=True)
class Timing:
    """The time of one rival at one length.

    Attributes:
        n: tokens.
        forgets: whether the inputs are random; else nothing is ever selected.
        name: ours, or a rival's.
        backward: whether it is forward and backward, or forward alone.
        ms: milliseconds, the median; None if it does not fit the memory.
        ratio: times flash attention's in the same run.
        peak_mb: the most device memory that the call takes on top of its inputs; None on the CPU.
        living: the share of pairs that our kernels compute.
    """

    n: int
    forgets: bool
    name: str
    backward: bool
    ms: float | None
    ratio: float | None
    peak_mb: float | None
    living: float


def materialised(query: Tensor, key: Tensor) -> Tensor:
    """F [B, N, N] of the selecting head 0, by plain operators, in fp32: all of it is held."""
    n = query.shape[2]
    S = torch.relu((query[:, 0] @ key[:, 0].mT).float() / query.shape[-1] ** 0.5)
    S = S.tril(-1)  # causality, and no token selects itself
    S = torch.cat([torch.zeros_like(S[..., :1]), S[..., 1:]], -1)
    return torch.cat([torch.zeros_like(S[:, :1]), S[:, : n - 1]], 1).cumsum(1)


def flex(tensors: tuple[Tensor, ...], backward: bool, compiled: bool) -> list[Tensor]:
    """FlexAttention with a materialised F. Its score_mod cannot reduce, so that F is made before it."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, key, value, gradient = tensors if backward else [x.detach() for x in tensors]
    attend = (
        COMPILED.setdefault("flex", torch.compile(flex_attention, fullgraph=True, dynamic=False))
        if compiled
        else flex_attention
    )
    with torch.set_grad_enabled(backward):
        F = materialised(query, key)
        n = query.shape[2]
        at = n, query.device
        if at not in COMPILED:
            COMPILED[at] = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device=query.device)
        output = attend(query, key, value, lambda x, b, h, i, j: x - F[b, i, j], COMPILED[at])
        return [output, *torch.autograd.grad(output, (query, key, value), gradient)] if backward else [output]


COMPILED: dict[object, object] = {}


def flash(tensors: tuple[Tensor, ...], backward: bool) -> list[Tensor]:
    """PyTorch's flash attention and nothing else; on the CPU what PyTorch has there."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key, value, gradient = tensors
    kernels = [SDPBackend.FLASH_ATTENTION] if query.dtype != torch.float32 else [SDPBackend.EFFICIENT_ATTENTION]
    if query.device.type == "cpu":
        kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with torch.set_grad_enabled(backward), sdpa_kernel(kernels):
        output = nnf.scaled_dot_product_attention(query, key, value, is_causal=True)
        return [output, *torch.autograd.grad(output, (query, key, value), gradient)] if backward else [output]


def calls(tensors: tuple[Tensor, ...], backward: bool) -> dict[str, Callable[[], list[Tensor]]]:
    """The rivals by name. FlexAttention is compiled on a GPU only, and has no backward pass on a CPU."""
    on_gpu = tensors[0].device.type == "cuda"
    made: dict[str, Callable[[], list[Tensor]]] = {
        "flash": lambda: flash(tensors, backward),
        "triton": lambda: run("triton", tensors, backward),
        "flex": lambda: flex(tensors, backward, on_gpu),
        "literal": lambda: literal(tensors, backward),
    }
    return {name: call for name, call in made.items() if on_gpu or not (backward and name == "flex")}


def agree(tensors: tuple[Tensor, ...]) -> None:
    """Raise if our result, or one of a rival with F, is wrong."""
    check("triton", tensors)
    exact = tuple(x.detach().double().requires_grad_(x.requires_grad) for x in tensors)
    limit = 1e-4 if tensors[0].dtype == torch.float32 else 0.1  # S in half precision, as the listing has it
    for backward in (False, True):
        truth = run("reference", exact, backward)
        for name, call in calls(tensors, backward).items():
            if name in ("flash", "triton"):  # which has no F, and which is checked
                continue
            pairs = zip(call(), truth, strict=True)
            worst = max(((x.double() - t).abs().max() / t.abs().max()).item() for x, t in pairs)
            if not worst < limit:
                raise SelattnError(f"{name!r} is wrong by {worst:.1e}: no times are printed for wrong results")


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call by the device's clock, after its caches were emptied."""
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    torch.empty(FLUSHED // 4, dtype=torch.int32, device=device).zero_()
    torch.cuda.reset_peak_memory_stats(device)  # of what emptied the caches nothing is to be counted
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1e3


def measure(tensors: tuple[Tensor, ...], forgets: bool, repeats: int) -> list[Timing]:
    """A row for each rival, forward and with backward."""
    device, n = tensors[0].device, tensors[0].shape[2]
    with torch.no_grad():
        aux = selective_attention(*tensors[:3], return_aux=AuxRequest(living=True), backend="triton")[1]
    assert aux.living is not None
    living, rows = aux.living.mean().item(), []
    for backward in (False, True):
        torch.compiler.reset()  # of FlexAttention, which is compiled for each length
        made = calls(tensors, backward)
        times: dict[str, list[float]] = {name: [] for name in made}
        peaks: dict[str, float | None] = {}
        for turn in range(repeats + 1):  # the first is for warming up, and for memory
            for name, call in made.items():
                if name not in times:
                    continue
                try:
                    if device.type == "cuda":
                        before = torch.cuda.memory_allocated(device)
                    taken = seconds(call, device)
                except torch.OutOfMemoryError:
                    del times[name]
                    continue
                if turn:
                    times[name].append(taken)
                else:
                    more = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
                    peaks[name] = None if more is None else more / 2**20
        found = {name: statistics.median(each) for name, each in times.items()}
        for name in made:
            ms = 1e3 * found[name] if name in found else None
            ratio = found[name] / found["flash"] if name in found else None
            rows.append(Timing(n, forgets, name, backward, ms, ratio, peaks.get(name), living))
    return rows


def draw(rows: list[Timing], title: str) -> None:
    """Times and ratios as a table."""
    table = Table("", "forward, ms", "x flash", "with backward, ms", "x flash", "MB", title=title, title_justify="left")
    for name in dict.fromkeys(row.name for row in rows):
        cells, peak = [], ""
        for row in (row for row in rows if row.name == name):
            fits = row.ms is not None and row.ratio is not None
            cells += [f"{row.ms:.3f}", f"{row.ratio:.2f}"] if fits else ["does not fit", ""]
            peak = "" if row.peak_mb is None else f"{row.peak_mb:.0f}"
        table.add_row(name, *cells, *[""] * (4 - len(cells)), peak)
    Console().print(table)


def refuse(reason: str) -> int:
    """Say in one line why there are no times; the exit code."""
    print(f"gpu.py: {reason}", file=sys.stderr)
    return 2


def main() -> int:
    """Check, measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, at a tiny size: times say nothing")
    parser.add_argument("--out", type=Path, default=Path("results/gpu.json"))
    args = parser.parse_args()
    if args.dry_run:
        if not configs.interpreted():  # Triton asks when it is imported, which it has been by now
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "TRITON_INTERPRET": "1"})
        args.n, args.batch, args.heads, args.dim, args.dtype, args.repeats = [20], 1, 2, 16, "float32", 1
    elif not torch.cuda.is_available():
        return refuse("there is no CUDA device to time anything on (--dry-run tries it on the CPU)")
    if reason := configs.unavailable():
        return refuse(reason)
    device = torch.device("cpu" if args.dry_run else "cuda")
    shape, rows = Shape(args.batch, args.heads, args.dim, getattr(torch, args.dtype)), []
    records.check_output(args.out)

    def made(n: int, forgets: bool) -> tuple[Tensor, ...]:
        return tuple(
            x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs(n, shape, forgets, args.seed)
        )

    try:
        agree(made(min(333, *args.n), True))
    except SelattnError as error:
        return refuse(str(error))
    for forgets in (True, False):
        for n in args.n:
            new = measure(made(n, forgets), forgets, args.repeats)
            rows += new
            kind = "random inputs" if forgets else "nothing forgotten"
            draw(new, f"N = {n:,}, {kind}, {new[0].living:.0%} of the pairs computed")
    body = {
        "device": selfcheck.name_of(device),
        "dry_run": args.dry_run,
        "shape": {"batch": args.batch, "heads": args.heads, "dim": args.dim, "dtype": args.dtype},
        "repeats": args.repeats,
        "rows": to_json(rows),
    }
    print(records.write_record(args.out, body, seed=args.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
