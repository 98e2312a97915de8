"""`selattn bench`: how fast the attention backends are on this machine, beside PyTorch's flash attention.

Times are ratios within one run. Leave the machine alone meanwhile: a second busy process costs a multiple.
"""

import argparse
from typing import TYPE_CHECKING, Any

from selattn.cli import _options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DTYPES = ("float32", "float64", "bfloat16")
REFERENCE_LIMIT = 2048  # the reference's N x N matrices get slow, and large
WIDTH = 14  # characters of the longest bar


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("bench", help="time the attention backends on this machine", description=__doc__)
    parser.add_argument(
        "--n", type=_options.whole(1), nargs="+", default=[512, 2048], metavar="N", help="lengths (default: 512 2048)"
    )
    parser.add_argument("--batch", type=_options.whole(1), default=1)
    parser.add_argument("--heads", type=_options.whole(1), default=12)
    parser.add_argument("--dim", type=_options.whole(1), default=64, help="of a head (default: 64)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--nothing-forgotten", action="store_true", help="inputs that never select: the worst case")
    parser.add_argument("--repeats", type=_options.whole(1), default=5)
    parser.add_argument("--seed", type=_options.seed, default=0)
    parser.add_argument("--out", type=_options.path, metavar="FILE", help="also write a JSON record")


def run(args: argparse.Namespace) -> int:
    """Check, measure, draw."""
    import torch
    from rich.console import Console

    from selattn.cli import _bench
    from selattn.ops import backends
    from selattn.utils import native, records
    from selattn.utils.progress import ProgressLine

    records.check_output(args.out)
    console = Console(highlight=False)
    shape = _bench.Shape(args.batch, args.heads, args.dim, getattr(torch, args.dtype))
    _bench.check_memory(args.n, shape, REFERENCE_LIMIT)
    names = [name for name, missing in backends().items() if missing is None]
    rows: list[dict[str, Any]] = []
    forgets = not args.nothing_forgotten
    with ProgressLine("checking", len(names) + len(args.n)) as line:
        for name in names:
            _bench.check(name, _bench.inputs(_bench.CHECK_LENGTH, shape, forgets, args.seed))
            line.advance()
        for n in args.n:
            line.update(title=f"N = {n:,}")
            tensors = _bench.inputs(n, shape, forgets, args.seed)
            some = [name for name in names if name != "reference" or n <= REFERENCE_LIMIT]
            share = _bench.living_share(tensors)
            rows += [{**row, "living": share} for row in _bench.measure(tensors, some, args.repeats)]
            line.advance()
    for n in args.n:
        draw([row for row in rows if row["n"] == n], console)
    target = native.target()
    console.print(
        f"[dim]{args.batch} x {args.heads} heads of {args.dim}, {args.dtype}, {torch.get_num_threads()} threads, "
        f"compiled library: {target or 'not built'}[/]"
    )
    if args.out is not None:
        data = {"shape": {**shape._asdict(), "dtype": args.dtype}, "forgets": forgets, "target": target, "rows": rows}
        console.print(f"[dim]recorded in {records.write_record(args.out, data, seed=args.seed)}[/]")
    return 0


def draw(rows: list[dict[str, Any]], console: "Console") -> None:
    """The backends at one length, each with a bar; shorter is faster."""
    from rich.table import Table

    title = f"N = {rows[0]['n']:,}: time as a multiple of PyTorch's flash attention"
    caption = f"{rows[0]['living']:.0%} of the pairs are alive"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", title_style="bold")
    table.add_column("backend")
    for heading in ("forward", "forward + backward"):
        table.add_column(heading, no_wrap=True)
        table.add_column("ms", justify="right")
    longest = max(row[key] for row in rows for key in ("forward_ratio", "both_ratio"))
    for row in rows:
        forward, both = (bar(row[f"{key}_ratio"], longest) for key in ("forward", "both"))
        table.add_row(row["backend"], forward, f"{row['forward_ms']:.1f}", both, f"{row['both_ms']:.1f}")
    console.print(table, "")


def bar(ratio: float, longest: float) -> "Text":
    """A bar as long as the time, and the ratio behind it; green where it is faster than the rival."""
    from rich.text import Text

    style = "green" if ratio < 1 else "cyan"
    length = max(1, round(WIDTH * ratio / longest))
    return Text.assemble(("█" * length, style), f" {ratio:.2f}")
