"""`selattn bench`: how fast the attention backends are on this machine, beside PyTorch's flash attention.

Times are ratios within one run. Leave the machine alone meanwhile: a second busy process costs a multiple.
"""

import argparse
from typing import TYPE_CHECKING, Any

from selattn.cli import _options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from selattn.evaluation.speed import Timing

DTYPES = ("float32", "float64", "bfloat16")
WIDTH = 14  # characters of the longest bar
DEFAULTS = {"n": [512, 2048], "batch": 1, "heads": 12, "dim": 64, "dtype": "float32", "repeats": 5, "seed": 0}


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add `selattn bench` and its options to the command line."""
    parser = subparsers.add_parser("bench", help="time the attention backends on this machine", description=__doc__)
    parser.add_argument("--n", type=_options.whole(1), nargs="+", metavar="N", help="lengths (default: 512 2048)")
    parser.add_argument("--batch", type=_options.whole(1), help="(default: 1)")
    parser.add_argument("--heads", type=_options.whole(1), help="(default: 12)")
    parser.add_argument("--dim", type=_options.whole(1), help="of a head (default: 64)")
    parser.add_argument("--dtype", choices=DTYPES, help="(default: float32)")
    parser.add_argument("--nothing-forgotten", action="store_true", help="inputs that never select: the worst case")
    parser.add_argument("--repeats", type=_options.whole(1), help="(default: 5)")
    parser.add_argument("--seed", type=_options.seed, help="(default: 0)")
    parser.add_argument("--out", type=_options.path, metavar="FILE", help="also write a JSON record")


def run(args: argparse.Namespace) -> int:
    """Time the backends, print the table, and write the record; the exit code."""
    import torch
    from rich.console import Console

    from selattn.evaluation.speed import Shape, bench
    from selattn.utils.progress import ProgressLines
    from selattn.utils.records import check_output, write_record

    _options.fill(args, DEFAULTS)
    check_output(args.out)
    shape = Shape(args.batch, args.heads, args.dim, getattr(torch, args.dtype))
    how = {"forgets": not args.nothing_forgotten, "repeats": args.repeats, "seed": args.seed}
    found, console = bench(args.n, shape, **how, progress=ProgressLines()), Console(highlight=False)
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
    """The backends at one length, each with a bar; shorter is faster."""
    from rich.table import Table

    title = f"N = {rows[0].n:,}: time as a multiple of PyTorch's flash attention"
    caption = f"{rows[0].living:.0%} of the pairs are alive"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", title_style="bold")
    table.add_column("backend")
    for heading in ("forward", "forward + backward"):
        table.add_column(heading, no_wrap=True)
        table.add_column("ms", justify="right")
    longest = max(ratio for row in rows for ratio in (row.forward_ratio, row.both_ratio))
    for row in rows:
        forward, both = (bar(ratio, longest) for ratio in (row.forward_ratio, row.both_ratio))
        table.add_row(row.backend, forward, f"{row.forward_ms:.1f}", both, f"{row.both_ms:.1f}")
    console.print(table, "")


def bar(ratio: float, longest: float) -> "Text":
    """A bar as long as the time, and the ratio behind it; green where it is faster than the rival."""
    from rich.text import Text

    style = "green" if ratio < 1 else "cyan"
    length = max(1, round(WIDTH * ratio / longest))
    return Text.assemble(("█" * length, style), f" {ratio:.2f}")
