"""`selattn bench`: how fast the attention backends are on this machine, beside PyTorch's flash attention.

Times are ratios within one run. Leave the machine alone meanwhile: a second busy process costs a multiple.

With --check nothing is timed: the GPU kernels are held against the reference on this machine's GPU, in every dtype
and situation, and a record of that is written, which helps us wherever something is wrong.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from selattn.evaluation.speed import Timing

DTYPES = ("float32", "float64", "bfloat16")
WIDTH = 14  # characters of the longest bar
SHAPE = ("n", "batch", "heads", "dim", "dtype", "repeats", "seed", "nothing_forgotten")  # which --check has none of
CHECKED = "selattn-gpu-check.json"  # what --check writes by default


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add `selattn bench` and its options to the command line."""
    parser = subparsers.add_parser("bench", help="time the attention backends on this machine", description=__doc__)
    parser.add_argument(
        "--n", type=_options.whole(1), nargs="+", default=[512, 2048], metavar="N", help="lengths (default: 512 2048)"
    )
    parser.add_argument("--batch", type=_options.whole(1), default=1, help="(default: 1)")
    parser.add_argument("--heads", type=_options.whole(1), default=12, help="(default: 12)")
    parser.add_argument("--dim", type=_options.whole(1), default=64, help="of a head (default: 64)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="(default: float32)")
    parser.add_argument("--nothing-forgotten", action="store_true", help="inputs that never select: the worst case")
    parser.add_argument("--repeats", type=_options.whole(1), default=5, help="(default: 5)")
    parser.add_argument("--seed", type=_options.seed, default=0, help="(default: 0)")
    parser.add_argument("--check", action="store_true", help="check the GPU kernels on this machine's GPU")
    parser.add_argument(
        "--out", type=_options.path, metavar="FILE", help=f"also write a JSON record (with --check: {CHECKED})"
    )


def run(args: argparse.Namespace) -> int:
    """Time the backends, print the table, and write the record; the exit code."""
    import torch
    from rich.console import Console

    from selattn.evaluation.speed import Shape, bench
    from selattn.utils.progress import Shown
    from selattn.utils.records import check_output, write_record

    if args.check:
        return check(args)
    check_output(args.out)
    shape = Shape(args.batch, args.heads, args.dim, getattr(torch, args.dtype))
    how = {"forgets": not args.nothing_forgotten, "repeats": args.repeats, "seed": args.seed}
    found, console = bench(args.n, shape, **how, progress=Shown()), Console(highlight=False)
    for n in args.n:
        draw([row for row in found.rows if row.n == n], console)
    console.print(
        f"[dim]{args.batch} x {args.heads} heads of {args.dim}, {args.dtype}, {torch.get_num_threads()} threads, "
        f"compiled library: {found.target or 'not built'}[/]"
    )
    if args.out is not None:
        console.print(f"[dim]recorded in {write_record(args.out, found, seed=args.seed)}[/]")
    return 0


def check(args: argparse.Namespace) -> int:
    """Hold the GPU kernels against the reference; 0 if all is right, 1 if something is not."""
    from rich.console import Console

    from selattn.evaluation.gpu_check import check_gpu
    from selattn.utils.progress import Shown
    from selattn.utils.records import check_output, write_record

    _options.refuse(args, SHAPE, "--check has its own examples")
    out = args.out or Path(CHECKED)
    check_output(out)
    found, console = check_gpu(progress=Shown()), Console(highlight=False, soft_wrap=True)
    for x in found.examples:
        for line in x.wrong:
            console.print(f"{x.name} ({x.dtype}, heads of {x.size}, {x.tokens:,} tokens): {line}", style="red")
    console.print(f"{len(found.examples) - found.failed} of {len(found.examples)} examples are right on {found.device}")
    console.print(f"[dim]recorded in {write_record(out, found, seed=None)}: please send it to us[/]")
    return int(found.failed > 0)


def draw(rows: "Sequence[Timing]", console: "Console") -> None:
    """The backends at one length, each with a bar: shorter is faster, and green is faster than the rival."""
    from selattn.utils.tables import Table

    longest = max(ratio for row in rows for ratio in (row.forward_ratio, row.both_ratio))
    cells, styles = [], {}
    for number, row in enumerate(rows):
        forward, both = (
            f"{'█' * max(1, round(WIDTH * ratio / longest))} {ratio:.2f}"
            for ratio in (row.forward_ratio, row.both_ratio)
        )
        styles[number, 1] = "green" if row.forward_ratio < 1 else "cyan"
        styles[number, 3] = "green" if row.both_ratio < 1 else "cyan"
        cells.append((row.backend, forward, f"{row.forward_ms:.1f}", both, f"{row.both_ms:.1f}"))
    title = f"N = {rows[0].n:,}: time as a multiple of PyTorch's flash attention"
    head = ("backend", "forward", "ms", "forward + backward", "ms")
    console.print(Table(head, cells, title, left=[1, 3], styles=styles).rich())
    console.print(f"[dim]{rows[0].living:.0%} of the pairs are alive[/]", "")
