"""`selattn bench`: how fast the attention backends are on this machine, beside PyTorch's flash attention.

Times are ratios within one run. Leave the machine alone meanwhile: a second busy process distorts them.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selattn.cli import _options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from selattn.evaluation.speed import Timing

DTYPES = ("float32", "float64", "bfloat16")
WIDTH = 14  # characters of the longest bar


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn bench` and its options to the command line."""
    parser = _options.add_command(subparsers, "bench", "time the attention backends on this machine", __doc__)
    _options.number(parser, "--n", "lengths", [512, 2048], nargs="+")
    for name, default, what in (("batch", 1, "sequences"), ("heads", 12, "heads"), ("dim", 64, "size of a head")):
        kind = _options.whole(1)
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{what} (default: {default})")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="(default: float32)")
    parser.add_argument("--nothing-forgotten", action="store_true", help="inputs that never select: the worst case")
    _options.number(parser, "--repeats", "rounds", 5)
    _options.add_seed(parser, "of the inputs")
    _options.file(parser, "--out", "also write a JSON record")


def run(args: argparse.Namespace) -> int:
    """Time the backends, print the table, and write the record; the exit code."""
    import torch
    from rich.console import Console

    from selattn.evaluation.speed import Shape, bench
    from selattn.utils.progress import Shown
    from selattn.utils.records import check_output, write_record

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


def draw(rows: Sequence[Timing], console: Console) -> None:
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
