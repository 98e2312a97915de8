"""Tables in the documents, written from the records in results/.

A table stands between two lines that readers do not see, of which the first names a function of this file:

    <!-- table: NAME -->
    <!-- end -->

`python -m tools.tables` writes all of them; with --check it writes nothing, and exits with 1 if a page is stale.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.engine.records import Reproduction
from lab.engine.tables import ours, what_was_run
from selattn.utils.records import read_body, read_record
from selattn.utils.tables import Table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BETWEEN = re.compile(r"^<!-- table: (?P<name>.*) -->\n(?P<table>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def what_you_get(results: Path) -> str:
    """The README's table: what selective attention, and this code, are worth beside the best that is there."""
    efficiency = read_body(results / "reproduce/laptop/efficiency.json", Reproduction)
    names = ("attention", "decode", "conversion", "convert_pretrained")
    records: dict[str, dict[str, Any]] = {name: read_record(results / f"{name}.json") for name in names}
    small = "[efficiency](results/reproduce/laptop/efficiency.json)"
    rows = [_loss(efficiency, small)]
    rows += [
        _memory(
            efficiency, "at the standard model's loss", "times less memory at the standard loss, all documents", small
        ),
        _memory(
            efficiency,
            "within 0.005 nats of a model's own loss",
            "times less memory at the own loss, all documents",
            small,
        ),
        _converted(records["conversion"]),
        _passkeys(records["convert_pretrained"]),
        _operator(records["attention"], "nothing", "nothing is masked (worst case)"),
        _operator(records["attention"], "random", "random inputs, most of which mask"),
        _decoding(records["decode"]),
    ]
    machines = [read_record(results / "reproduce/laptop/efficiency.json"), *records.values()]
    cores = sorted({record["machine"]["cores"] for record in machines})
    caption = (
        f"All of it was measured on machines with {' or '.join(map(str, cores))} CPU cores. The first three rows are "
        f"small language models ({what_was_run(efficiency)}): the mean of {len(efficiency.seeds)} seeds (smallest to "
        "largest), on held-out documents of the encyclopaedia that they were trained on, with a budget searched for "
        "each layer; factors count tokens and are read off the curve between two budgets. For these models other "
        "eviction policies with searched budgets have not been measured yet. Times (lower is better) and speeds "
        "(higher is better) are relative to a rival in the same run."
    )
    table = Table(("", "without selective attention", "with it", "record"), rows)
    return f"{textwrap.fill(caption, 118)}\n\n{table.grid()}"


Row = tuple[str, str, str, str]


def _loss(record: Reproduction, link: str) -> Row:
    standard, selective = (ours(record.cell("loss, all documents", kind)) for kind in ("standard", "selective"))
    return "Loss with everything kept, nats per token", standard, selective, link


def _memory(record: Reproduction, where: str, row: str, link: str) -> Row:
    return f"Times less KV memory {where}", "", ours(record.cell(row, "selective")), link


def _converted(record: dict[str, Any]) -> Row:
    """The control is trained as long without selection and pruned by H2O."""
    factors = [
        record["summary"][recipe][policy]["by layer"]["factor at equal search loss"]["mean"]
        for recipe, policy in (("control", "h2o"), ("recipe", "selective"))
    ]
    control, converted = (f"{factor:.1f}" for factor in factors)
    seeds = record["summary"]["recipe"]["seeds"]
    return (
        f"Times less KV memory at which fine-tuned {record['model']}, a tiny Llama, matches its loss before "
        f"fine-tuning ({seeds} seeds)",
        f"{control}, H2O",
        f"{converted}, converted by `selattn convert`",
        "[conversion](results/conversion.json)",
    )


def _passkeys(record: dict[str, Any]) -> Row:
    before, after = (
        record["lines"][line]["1 times less"]["passkeys"] for line in ("original, h2o", "converted, 40 steps")
    )
    return (
        f"Passkeys of {record['items']} that SmolLM2-135M-Instruct (4-bit weights) recalls with everything kept "
        "(one run, no control)",
        f"{before}",
        f"{after}, after a short conversion on WikiText-2",
        "[convert_pretrained](results/convert_pretrained.json)",
    )


def _operator(record: dict[str, Any], inputs: str, what: str, n: int = 2048) -> Row:
    (row,) = [row for row in record[inputs] if (row["n"], row["backend"]) == (n, "cpu")]
    return (
        f"Time of the operator at {n:,} tokens, {what}",
        "1, PyTorch's flash attention",
        f"{row['forward_ratio']:.2f} forward, {row['both_ratio']:.2f} with backward",
        "[attention](results/attention.json)",
    )


def _decoding(record: dict[str, Any], batch: int = 16, context: int = 2048) -> Row:
    (row,) = [row for row in record["rows"] if (row["batch"], row["context"]) == (batch, context)]
    times = row["times_faster_than"][row["best"]]
    slowest = min(row["times_faster_than"][row["best"]]["16x budgets"]["median"] for row in record["rows"])
    return (
        f"Decoding speed, batch {batch}, {context:,} tokens, a model of the paper's size d={record['shape']['d']}, "
        "random weights",
        "1, stock Llama with the fastest cache of transformers",
        f"{times['no budgets']['median']:.2f} with everything kept, {times['16x budgets']['median']:.2f} with "
        f"{row['memory_factor']:.0f} times less KV memory (the best of {len(record['rows'])} settings; the least is "
        f"{slowest:.2f})",
        "[decode](results/decode.json)",
    )


TABLES: dict[str, Callable[[Path], str]] = {"what-you-get": what_you_get}


def written(page: str, results: Path = ROOT / "results") -> str:
    """The page with the tables that the records give."""

    def write(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in TABLES:
            raise SystemExit(f"there is no table {name!r}: there are {', '.join(TABLES)}")
        return f"<!-- table: {name} -->\n{TABLES[name](results)}<!-- end -->"

    return BETWEEN.sub(write, page)


def main(argv: list[str] | None = None) -> None:
    """Write the tables of all pages, or say which pages are stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="default: README.md and docs/")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    args = parser.parse_args(argv)
    stale = [path for path in args.pages if written(path.read_text()) != path.read_text()]
    for path in stale:
        print(f"{path.name}: {'stale, `python -m tools.tables` writes it' if args.check else 'written'}")
        if not args.check:
            path.write_text(written(path.read_text()))
    sys.exit(bool(stale) and args.check)


if __name__ == "__main__":
    main()
