"""Standard attention, F = 0, by the compiled kernel and by PyTorch's: `python benchmarks/standard_attention.py`.

`backend="auto"` chooses between these two where a model does not select. Every time is a ratio within one run, and
results are checked first. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as nnf

from selattn.errors import SelattnError
from selattn.evaluation.speed import RIVAL, Shape, inputs, medians
from selattn.ops import causal_attention
from selattn.utils import records

TOKENS = 2_048  # of a call: the batch follows from the length
WORST = {torch.float32: 1e-4, torch.bfloat16: 0.03}  # relative to the largest value


def run(name: str, tensors: tuple[Tensor, ...], backward: bool) -> list[Tensor]:
    """One call, with gradients if wanted."""
    query, key, value, gradient = tensors
    with torch.set_grad_enabled(backward):
        if name == RIVAL:
            output = nnf.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            output = causal_attention(query, key, value, backend=name)
        return [output, *torch.autograd.grad(output, (query, key, value), gradient)] if backward else [output]


def check(tensors: tuple[Tensor, ...]) -> None:
    """Raise if the two differ: no times are printed for wrong results."""
    for ours, theirs in zip(run("cpu", tensors, True), run(RIVAL, tensors, True), strict=True):
        worst = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        if not worst < WORST[ours.dtype]:
            raise SelattnError(f"the two differ by {worst:.1e}: no times are printed for wrong results")


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each dtype, length and number of threads: milliseconds of both, and their ratio."""
    rows = []
    for dtype in WORST:
        for n in args.n:
            shape = Shape(batch=max(TOKENS // n, 1), heads=args.heads, dim=64, dtype=dtype)
            tensors = inputs(n, shape, True, args.seed)
            check(tensors)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                row: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "n": n, "threads": threads}
                for what, backward in (("forward", False), ("both", True)):
                    found = medians(
                        {name: partial(run, name, tensors, backward) for name in (RIVAL, "cpu")}, args.repeats
                    )
                    row[what] = {name: 1e3 * each for name, each in found.items()}
                    row[f"{what}_ratio"] = found["cpu"] / found[RIVAL]
                rows.append(row)
    return rows


def draw(rows: list[dict[str, Any]]) -> Table:
    """The ratios."""
    table = Table("", "N", "threads", "forward", "forward + backward", title="cpu / flash, standard attention")
    for row in rows:
        ratios = (f"{row[f'{what}_ratio']:.2f}" for what in ("forward", "both"))
        table.add_row(row["dtype"], f"{row['n']:,}", str(row["threads"]), *ratios)
    return table


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[32, 128, 512, 2048, 4096])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/standard_attention.json")
    args = parser.parse_args()
    rows = measure(args)
    Console().print(draw(rows))
    found = {"heads": args.heads, "tokens": TOKENS, "repeats": args.repeats, "rows": rows}
    print(records.write_record(args.out, found, seed=args.seed))


if __name__ == "__main__":
    main()
