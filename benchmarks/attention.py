"""The attention backends beside PyTorch's flash attention: `python benchmarks/attention.py`.

Prints each backend's time as a multiple of `scaled_dot_product_attention(is_causal=True)` in the same run, forward and
forward + backward, and the peak of the memory that a call allocates. Nothing is printed for a backend whose results
are wrong. Run it on a quiet machine: PyTorch's threads wait for each other, so a second busy process costs a multiple.
"""

from __future__ import annotations

import argparse
import sys

import torch
from memory import peak_bytes
from rich.console import Console
from rich.table import Table
from timing import medians
from torch import Tensor
from torch.nn import functional as nnf

from selattn import records, selective_attention
from selattn.ops import backends

RIVAL = "flash"


def inputs(n: int, args: argparse.Namespace) -> tuple[Tensor, ...]:
    """query, key, value and the output's gradient."""
    torch.manual_seed(args.seed)
    shape = (args.batch, args.heads, n, args.dim)
    return (*(torch.randn(shape, requires_grad=True) for _ in range(3)), torch.randn(shape))


def run(name: str, tensors: tuple[Tensor, ...], backward: bool) -> list[Tensor]:
    """One call of the backend (or of the rival, standard attention), with gradients if wanted."""
    *qkv, gradient = tensors
    with torch.set_grad_enabled(backward):
        if name == RIVAL:
            output = nnf.scaled_dot_product_attention(*qkv, is_causal=True)
        else:
            output = selective_attention(*qkv, backend=name)
        return [output, *torch.autograd.grad(output, qkv, gradient)] if backward else [output]


def check(name: str, tensors: tuple[Tensor, ...]) -> None:
    """Output and gradients against the reference in fp64; wrong results end the benchmark."""
    exact = tuple(x.detach().double().requires_grad_(x.requires_grad) for x in tensors)
    for found, true in zip(run(name, tensors, True), run("reference", exact, True), strict=True):
        worst = ((found - true).abs().max() / true.abs().max()).item()
        if not worst < 1e-4:
            sys.exit(f"backend {name!r} is wrong by {worst:.1e}: no times are printed for wrong results")


def measure(n: int, names: list[str], args: argparse.Namespace) -> list[dict[str, object]]:
    """One row for each backend."""
    tensors = inputs(n, args)
    times = {
        backward: medians({m: lambda m=m, b=backward: run(m, tensors, b) for m in (RIVAL, *names)}, args.repeats)
        for backward in (False, True)
    }
    return [
        {
            "n": n,
            "backend": name,
            "forward_ms": 1e3 * times[False][name],
            "both_ms": 1e3 * times[True][name],
            "forward_ratio": times[False][name] / times[False][RIVAL],
            "both_ratio": times[True][name] / times[True][RIVAL],
            "peak_mb": peak_bytes(lambda m=name: run(m, tensors, True)) / 2**20,
        }
        for name in (RIVAL, *names)
    ]


def draw(rows: list[dict[str, object]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="time as a multiple of PyTorch's causal flash attention, same run", title_justify="left")
    for heading in ("N", "backend", "forward", "forward + backward", "ms", "peak MB"):
        table.add_column(heading, justify="left" if heading == "backend" else "right")
    for row in rows:
        ratios = [f"{row['forward_ratio']:.2f}", f"{row['both_ratio']:.2f}"]
        ms = f"{row['forward_ms']:.0f} | {row['both_ms']:.0f}"
        last = row is rows[-1] or rows[rows.index(row) + 1]["n"] != row["n"]
        table.add_row(f"{row['n']:,}", str(row["backend"]), *ratios, ms, f"{row['peak_mb']:,.0f}", end_section=last)
    console.print(table)


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--reference-up-to", type=int, default=2048, help="the reference's N x N matrices get slow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/attention.json")
    args = parser.parse_args()

    names = [name for name, missing in backends().items() if missing is None]
    rows: list[dict[str, object]] = []
    for name in names:
        check(name, inputs(333, args))
    for n in args.n:
        rows += measure(n, [m for m in names if m != "reference" or n <= args.reference_up_to], args)
    shape = {"batch": args.batch, "heads": args.heads, "dim": args.dim, "dtype": "float32", "repeats": args.repeats}
    draw(rows, Console())
    print(records.write_record(args.out, {"shape": shape, "rows": rows}, seed=args.seed))


if __name__ == "__main__":
    main()
