"""`selattn bench`: how fast the attention backends are on this machine, beside PyTorch's flash attention.

Times are ratios within one run. Leave the machine alone meanwhile: a second busy process costs a multiple.
"""

import argparse
from typing import TYPE_CHECKING, Any

from selattn.cli import _options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from selattn.evaluation.speed import Timing

DTYPES = ("float32", "float64", "bfloat16")
WIDTH = 14  # characters of the longest bar


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
    parser.add_argument("--out", type=_options.path, metavar="FILE", help="also write a JSON record")


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
