"""Times of selective attention, PyTorch's flash attention and the peers: `python benchmarks/attention.py`.

Every time is a ratio within one run. Results are checked against the reference first.
Run it on a quiet machine: threads wait for each other, so that a second busy process costs a multiple.

    nothing      nothing is ever forgotten: the most work possible, on all backends
    random       random inputs, where columns die
    peers        the paper's pseudo-code, and x-transformers' attention layer, and ours with its weights
    threads      what the second thread gains
    memory       the highest resident memory of a process that runs forward and backward once, less that of an idle one
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peers import Layer, layers
from pseudo_code import literal
from rich.console import Console
from rich.table import Table

from selattn.cli.bench import draw
from selattn.evaluation import speed
from selattn.evaluation.speed import RIVAL, Shape, medians, seconds
from selattn.ops import backends
from selattn.utils import records
from selattn.utils.typed import to_json

PARTS = ("nothing", "random", "peers", "threads", "memory")
SHAPE = Shape()


def available() -> list[str]:
    """The backends that this machine has, but for `sdpa`, which has no F."""
    return [name for name, missing in backends().items() if missing is None and name != "sdpa"]


def times(lengths: list[int], forgets: bool, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All backends at some lengths."""
    rows = []
    for n in lengths:
        tensors = speed.inputs(n, SHAPE, forgets, args.seed)
        names = [name for name in available() if name != "reference" or n <= args.reference_up_to]
        rows += speed.measure(tensors, names, args.repeats)
        draw([row for row in rows if row.n == n], Console())
    return to_json(rows)


def peers(n: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of operator and pseudo-code where nothing is forgotten, and of both layers; forward and backward."""
    tensors = speed.inputs(n, SHAPE, False, args.seed)
    made: dict[str, Layer] = layers(SHAPE.heads, SHAPE.dim, args.seed)
    x = torch.randn(1, n, SHAPE.heads * SHAPE.dim)
    ours, theirs = (made[name](x) for name in ("selattn", "x-transformers"))
    if not (ours - theirs).abs().max() < 1e-4:
        sys.exit("the two layers differ: no times are printed for wrong results")
    rivals = {
        "operator: selattn": lambda: speed.run("cpu", tensors, True),
        "operator: the paper's pseudo-code": lambda: literal(tensors),
        "layer: selattn": lambda: made["selattn"](x).sum().backward(),
        "layer: x-transformers": lambda: made["x-transformers"](x).sum().backward(),
    }
    found = medians(rivals, args.repeats)
    pairs = {"the paper's pseudo-code": "operator", "x-transformers": "layer"}
    rows = [
        {
            "n": n,
            "peer": peer,
            "peer_ms": 1e3 * found[f"{kind}: {peer}"],
            "our_ms": 1e3 * found[f"{kind}: selattn"],
            "times_faster": found[f"{kind}: {peer}"] / found[f"{kind}: selattn"],
        }
        for peer, kind in pairs.items()
    ]
    table = Table("peer", "its ms", "our ms", "times faster", title=f"N = {n:,}, forward + backward")
    for row in rows:
        table.add_row(row["peer"], f"{row['peer_ms']:.0f}", f"{row['our_ms']:.0f}", f"{row['times_faster']:.1f}")
    Console().print(table)
    return rows


def threads(n: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of our kernel and the rival with 1 and 2 threads, in turn.

    A neighbour on the machine makes calls slower, never faster: so the fastest calls are recorded next to the medians.
    """
    tensors = speed.inputs(n, SHAPE, False, args.seed)
    rows = []
    table = Table("", "flash", "cpu", "cpu / flash", "fastest", title=f"what the second thread gains, N = {n:,}")
    for backward in (False, True):

        def call(name: str, count: int, backward=backward) -> None:
            torch.set_num_threads(count)
            speed.run(name, tensors, backward)

        pairs = [(name, count) for count in (1, 2) for name in (RIVAL, "cpu")]
        times = seconds({pair: partial(call, *pair) for pair in pairs}, args.repeats_threads)
        found, fastest = ({pair: of_all(each) for pair, each in times.items()} for of_all in (statistics.median, min))
        for count in (1, 2):
            each = {name: found[name, count] for name in (RIVAL, "cpu")}
            row = {"threads": count, "n": n, "backward": backward, **each}
            row["fastest"] = {name: fastest[name, count] for name in (RIVAL, "cpu")}
            rows.append({**row, "ratio": each["cpu"] / each[RIVAL]})
        gains, at_best = ([x[name, 1] / x[name, 2] for name in (RIVAL, "cpu")] for x in (found, fastest))
        shown = (*(f"{x:.2f}" for x in gains), f"{gains[1] / gains[0]:.3f}", f"{at_best[1] / at_best[0]:.3f}")
        table.add_row("forward + backward" if backward else "forward", *shown)
    Console().print(table)
    return rows


def memory(n: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The highest resident memory of each backend, in its own process, less the memory after imports."""
    rows = []
    for name in (RIVAL, "cpu"):
        command = [sys.executable, __file__, "--one-call", name, str(n), "--seed", str(args.seed)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        rows.append({"n": n, "backend": name, "peak_mb": float(found[-1])})
    ratio = rows[1]["peak_mb"] / rows[0]["peak_mb"]
    print(f"N = {n:,}, forward + backward: {rows[1]['peak_mb']:.0f} MB, flash {rows[0]['peak_mb']:.0f} MB: {ratio:.2f}")
    return rows


def one_call(name: str, n: int, seed: int) -> None:
    """Print the peak memory of a call, after a small call that loads libraries and starts threads."""
    speed.run(name, speed.inputs(128, SHAPE, False, seed), True)
    before = peak_rss()
    speed.run(name, speed.inputs(n, SHAPE, False, seed), True)
    print(peak_rss() - before)


def peak_rss() -> float:
    """The highest resident memory so far, in MB. (`ru_maxrss` would start from the parent process's.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not tell the highest resident memory")


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--n", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--long", type=int, default=16_384, help="N of the memory")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--repeats-threads", type=int, default=21, help="of the part 'threads'")
    parser.add_argument("--reference-up-to", type=int, default=2048, help="the reference's N x N matrices get slow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/attention.json")
    parser.add_argument("--one-call", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one_call:
        return one_call(args.one_call[0], int(args.one_call[1]), args.seed)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown part {unknown.pop()!r}: choose from {', '.join(PARTS)}")
    for forgets in (False, True):
        for name in available():
            speed.check(name, speed.inputs(speed.CHECK_LENGTH, SHAPE, forgets, args.seed))
    found: dict[str, Any] = {"shape": {**SHAPE._asdict(), "dtype": "float32"}, "repeats": args.repeats}
    for part in args.parts or PARTS:
        print(f"\n{part}")
        if part in ("nothing", "random"):
            found[part] = times(args.n, part == "random", args)
        elif part == "peers":
            found[part] = peers(2048, args)
        elif part == "threads":
            found[part] = threads(4096, args)
        else:
            found[part] = memory(args.long, args)
    print(records.write_record(args.out, found, seed=args.seed))


if __name__ == "__main__":
    main()
