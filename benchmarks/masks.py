"""The cost of several selection masks, in units of a further head: `python benchmarks/masks.py`.

Attention of the `cpu` backend, forward, and forward and backward, in turn in one run, with random inputs and a
tolerance of 0, so that no column is left out: one mask of a head; the same with as many more heads as there are masks;
several masks of heads inside and outside of their groups; one and several masks of a separate form. `cost` is the time
that a mask adds, in units of the time of one more head: (time - time of one mask) / masks, over the same of more heads.
Results are checked against the reference first. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.testing import assert_close

from selattn.evaluation.speed import medians
from selattn.ops import Selection, selective_attention
from selattn.utils import records

ONE, MORE = "one mask of a head", "more heads"


def calls(n: int, heads: int, size: int, masks: int, seed: int) -> dict[str, dict[str, Any]]:
    """Arguments of the operator by name, and how many masks each adds to one of a head."""
    chance = torch.Generator().manual_seed(seed)

    def normal(number: int) -> Tensor:
        return torch.randn(1, number, n, size, generator=chance).requires_grad_()

    q, k, v = (normal(heads) for _ in range(3))
    group = heads // masks
    inside = tuple(group * mask for mask in range(masks))
    plain = {"query": q, "key": k, "value": v}

    def form(number: int) -> dict[str, Any]:
        return plain | {"selection_query": normal(number), "selection_key": normal(number)}

    return {
        ONE: plain,
        MORE: dict(zip(("query", "key", "value"), (normal(heads + masks) for _ in range(3)), strict=True)),
        f"{masks} masks, heads of their groups": plain | {"selection": Selection(inside)},
        f"{masks} masks, heads of others": plain | {"selection": Selection((*inside[1:], inside[0]))},
        "a form, one mask": form(1),
        f"a form, {masks} masks": form(masks),
    }


def added(name: str, masks: int) -> int:
    """How many masks, or heads, a call has more than one with one mask of a head."""
    if name == ONE:
        return 0
    return masks if name == MORE or name.startswith("a form, " + str(masks)) else 1 if "form" in name else masks - 1


def run(arguments: dict[str, Any], backward: bool, backend: str = "cpu") -> list[Tensor]:
    """The output, and the gradients of all inputs."""
    with torch.set_grad_enabled(backward):
        output = selective_attention(**arguments, kernel_options={"tolerance": 0.0}, backend=backend)
    if not backward:
        return [output]
    leaves = [x for x in arguments.values() if isinstance(x, Tensor)]
    return [output, *torch.autograd.grad(output, leaves, torch.ones_like(output))]


def main() -> None:
    """Check, measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--masks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/masks.json")
    args = parser.parse_args()
    if args.masks < 2 or args.heads % args.masks:
        parser.error("--masks must be a divisor of --heads, at least 2")
    for arguments in calls(97, args.heads, args.size, args.masks, args.seed).values():
        assert_close(run(arguments, True), run(arguments, True, "reference"), rtol=1e-3, atol=1e-4)
    rows: list[dict[str, object]] = []
    for n in args.n:
        given = calls(n, args.heads, args.size, args.masks, args.seed)
        found: dict[str, dict[str, object]] = {name: {"n": n, "what": name} for name in given}
        for kind, backward in (("forward", False), ("both", True)):
            times = medians({name: lambda x=x, b=backward: run(x, b) for name, x in given.items()}, args.repeats)
            head = (times[MORE] - times[ONE]) / args.masks
            for name, seconds in times.items():
                more = added(name, args.masks)
                cost = (seconds - times[ONE]) / more / head if more else None
                found[name] |= {f"{kind}_ms": 1e3 * seconds, f"{kind}_cost": cost}
        rows += found.values()
    table = Table(title=f"{args.heads} heads of {args.size}: what a mask costs, in heads", title_justify="left")
    for heading in ("N", "", "forward ms", "cost", "forward + backward ms", "cost"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        cells = [f"{row[f'{kind}_ms']:.2f}" for kind in ("forward", "both")]
        costs = ["" if row[f"{k}_cost"] is None else f"{row[f'{k}_cost']:.2f}" for k in ("forward", "both")]
        table.add_row(f"{row['n']:,}", str(row["what"]), cells[0], costs[0], cells[1], costs[1])
    Console().print(table)
    data = {"heads": args.heads, "size": args.size, "masks": args.masks, "repeats": args.repeats, "rows": rows}
    print(records.write_record(args.out, data, seed=args.seed))


if __name__ == "__main__":
    main()
