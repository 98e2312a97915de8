"""Tables in the documents, written from the records in results/.

A table stands between two lines that readers do not see, of which the first names a function of this file:

    <!-- table: NAME -->
    <!-- end -->

`python -m tools.tables` writes all of them; with --check it writes nothing, and exits with 1 if a page is stale.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
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
BETWEEN = re.compile(r"^<!-- table: (?P<name>[^\n]*) -->\n(?P<table>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def what_you_get(results: Path) -> str:
    """The README's table: losses, memory and speed with selective attention, beside the best alternative."""
    efficiency = read_body(results / "reproduce/laptop/efficiency.json", Reproduction)
    names = ("attention", "decode", "conversion", "convert_pretrained")
    records: dict[str, dict[str, Any]] = {name: read_record(results / f"{name}.json") for name in names}
    small = "[efficiency](results/reproduce/laptop/efficiency.json)"
    rows = [
        _loss(efficiency, small),
        _memory(efficiency, "at the standard model's loss", "standard", small),
        _memory(efficiency, "within 0.005 nats of a model's own loss", "own", small),
        _converted(records["conversion"]),
        _passkeys(records["convert_pretrained"]),
        _operator(records["attention"], "nothing", "fp32, nothing is masked (worst case)"),
        _operator(records["attention"], "random", "fp32, random inputs, most of which mask"),
        _decoding(records["decode"]),
    ]
    machines = [read_record(results / "reproduce/laptop/efficiency.json"), *records.values()]
    cores = sorted({record["machine"]["cores"] for record in machines})
    caption = (
        f"All of it was measured on machines with {' or '.join(map(str, cores))} CPU cores; times (lower is better) "
        "and speeds (higher is better) are relative to a rival in the same run. The first three rows are small "
        f"language models ({what_was_run(efficiency)}): the mean of {len(efficiency.seeds)} seeds (smallest to "
        "largest) on held-out documents of the encyclopaedia that they were trained on. The seeds are too few to tell "
        "whether the difference in loss is real, and the factor at the standard model's loss mostly says how good "
        "each seed's standard model is. Memory counts tokens and is read off the curve between two budgets: for "
        "selective attention with a budget searched for each layer, for H2O and Window+4 with the same budget in every "
        "layer, because their searched budgets have not been measured on these models yet."
    )
    table = Table(("", "without selective attention", "with it", "record"), rows)
    return f"{textwrap.fill(caption, 118)}\n\n{table.grid()}"


Row = tuple[str, str, str, str]


def _loss(record: Reproduction, link: str) -> Row:
    standard, selective = (ours(record.cell("loss, all documents", kind)) for kind in ("standard", "selective"))
    return "Loss with everything kept, nats per token", standard, selective, link


def _memory(record: Reproduction, where: str, loss: str, link: str) -> Row:
    row = f"times less memory at the {loss} loss, all documents"
    rivals = ", ".join(f"{ours(record.cell(row, f'standard, {name}'))} {name}" for name in ("H2O", "Window+4"))
    return f"Times less KV memory {where}", rivals, ours(record.cell(row, "selective")), link


def _converted(record: dict[str, Any]) -> Row:
    """The control is trained as long without selection and pruned by H2O."""
    factors = [
        record["summary"][recipe][policy]["by layer"]["factor at equal search loss"]["mean"]
        for recipe, policy in (("control", "h2o"), ("recipe", "selective"))
    ]
    control, converted = (f"{factor:.1f}" for factor in factors)
    seeds = record["summary"]["recipe"]["seeds"]
    return (
        f"Times less KV memory at which a fine-tuned {record['model']}, a tiny Llama, is back at its original loss "
        f"({seeds} seeds)",
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
        f"{row['memory_factor']:.0f} times less KV memory; {slowest:.2f} in the slowest of {len(record['rows'])} "
        "settings, this one is the fastest",
        "[decode](results/decode.json)",
    )


def decoding(results: Path) -> str:
    """Decoding speed of our decoder, relative to a stock Llama of its size."""
    return _decoding_rows(read_record(results / "decode.json"))


def decoding_stock(results: Path) -> str:
    """Decoding speed of a stock Llama made selective, relative to itself."""
    return _decoding_rows(read_record(results / "decode_stock.json"))


def _decoding_rows(record: dict[str, Any]) -> str:
    head = ("batch", "context", "Llama's fastest cache", "its tokens per second", "16x budgets", "no budgets")
    rows = []
    for row in record["rows"]:
        times = row["times_faster_than"][row["best"]]
        pruned = times["16x budgets"]
        rows.append(
            (
                f"{row['batch']}",
                f"{row['context']:,}",
                row["best"],
                f"{row['tokens_per_second'][row['best']]['median']:,.0f}",
                f"{pruned['median']:.2f}x ({pruned['low']:.2f} to {pruned['high']:.2f})",
                f"{times['no budgets']['median']:.2f}x",
            )
        )
    return Table(head, rows).grid()


def kernel_worst_case(results: Path) -> str:
    """The backends where nothing is ever forgotten, as multiples of flash attention's time."""
    rows = [
        (f"{row['n']:,}", f"`{row['backend']}`", f"{row['forward_ratio']:.2f}", f"{row['both_ratio']:.2f}")
        for row in read_record(results / "attention.json")["nothing"]
        if row["backend"] in ("reference", "chunked", "cpu") and row["n"] in (512, 2048, 4096)
    ]
    return Table(("N", "backend", "forward", "forward + backward"), rows).grid()


def kernel_living(results: Path) -> str:
    """The compiled kernel where columns are dead, as multiples of flash attention's time."""
    zoo = read_record(results / "zoo_attention.json")
    inputs = [
        (f"random inputs, N = {row['n']:,}", row)
        for row in read_record(results / "attention.json")["random"]
        if row["backend"] == "cpu" and row["n"] in (512, 2048, 4096)
    ]
    inputs += [
        (f"`{zoo['model']}`, all layers, N = {zoo['n']:,}", row) for row in zoo["rows"] if row["what"] == "all layers"
    ]
    rows = [
        (name, f"{row['living']:.0%}", f"{row['forward_ratio']:.2f}", f"{row['both_ratio']:.2f}")
        for name, row in inputs
    ]
    return Table(("", "pairs alive", "forward", "forward + backward"), rows).grid()


def kernel_standard(results: Path) -> str:
    """Standard attention in the compiled kernel, as multiples of flash attention's time."""
    rows = [
        (row["dtype"], f"{row['n']:,}", f"{row['forward_ratio']:.2f}", f"{row['both_ratio']:.2f}")
        for row in read_record(results / "standard_attention.json")["rows"]
        if row["threads"] == 2
    ]
    return Table(("dtype", "N", "forward", "forward + backward"), rows).grid()


def gpu_compiled(results: Path) -> str:
    """Registers and memory of the kernels that were compiled for GPUs."""
    head = ("card", "dtype", "kernels", "fit", "shared memory, KB", "spills, forward", "backward", "decoding")
    rows = [
        (
            f"sm_{row['target']}",
            row["dtype"],
            *(f"{row[name]}" for name in ("kernels", "fit")),
            f"{row['shared'] / 1024:.0f}",
            *(f"{row[f'spills_{name}']}" for name in ("forward", "backward", "decode")),
        )
        for row in read_record(results / "gpu_compile.json")["targets"]
        if row["size"] == 64 and row["dtype"] != "float16"
    ]
    return Table(head, rows).grid()


def gpu_predicted(results: Path) -> str:
    """Predicted times on two cards."""
    head = ("card", "alive", "forward, ms", "times flash", "with backward, ms", "times flash, both")
    rows = [
        (
            row["card"],
            f"{row['living']:.0%}",
            *(f"{row[name]:.2f}" for name in ("forward_ms", "forward_ratio", "both_ms", "both_ratio")),
        )
        for row in read_record(results / "gpu_cost.json")["rows"]
        if (row["heads"], row["dim"], row["n"]) == (16, 64, 32768)
    ]
    return Table(head, rows).grid()


def recipes(results: Path) -> str:
    """Conversion of stories260K, with the same budget in every layer."""
    record = read_record(results / "conversion.json")

    def factors(each: dict[str, Any]) -> tuple[str, str]:
        return _spread(each["equal"], 1), _spread(each["0.01 above"], 1)

    loss = record["original"]["unpruned"]["choice"]
    rows = [
        ("the original", f"`{row['policy']}`", f"{loss:.4f}", *factors(row["factor"]))
        for row in record["original"]["uniform"]
    ]
    for name, policy, summary in _converted_with(record):
        if name not in ("freeze first", "lr 2e-4", "lr 1e-3"):  # which did not help
            loss = record["summary"][name]["unpruned"]["mean"]
            rows.append((name, f"`{policy}`", f"{loss:.4f}", *factors(summary["factor"])))
    return Table(("recipe", "policy", "loss, unpruned", "factor, equal", "factor, +0.01"), rows).grid()


def recipes_by_layer(results: Path) -> str:
    """Conversion of stories260K, with a budget searched for each layer."""
    record = read_record(results / "conversion.json")
    rows = [
        (
            "the original",
            f"`{row['policy']}`",
            f"{row['8 times']['above the original']:+.4f}",
            _spread(row["equal"] and row["equal"]["factor"], 1),
        )
        for row in record["original"]["by layer"]
    ]
    for name, policy, summary in _converted_with(record):
        if layered := summary.get("by layer"):
            cost, factor = layered["8 times, above the original"], layered["factor at equal search loss"]
            rows.append((name, f"`{policy}`", _spread(cost, 4), _spread(factor, 1)))
    return Table(("", "policy", "8 times less memory", "factor, equal when searched"), rows).grid()


def _converted_with(record: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Recipes, the policies that each was measured with, and the measurements."""
    return [
        (name, policy, summary)
        for name, policies in record["summary"].items()
        for policy, summary in policies.items()
        if policy not in ("seeds", "unpruned")
    ]


def pretrained(results: Path) -> str:
    """Conversion of SmolLM2-135M-Instruct: losses with 1 to 8 times less memory, and passkeys."""
    record = read_record(results / "convert_pretrained.json")
    rows = [
        (
            name,
            *(f"{line['losses'][factor]:.4f}" for factor in ("1", "2", "4", "8")),
            *(_spread(line["factor"][which], 1) for which in ("equal", "1% more")),
            *(f"{line[f'{factor} times less']['passkeys']} of {record['items']}" for factor in (1, 4)),
        )
        for name, line in record["lines"].items()
    ]
    head = ("", "1x", "2x", "4x", "8x", "factor, equal", "factor, +1%", "passkeys, unpruned", "passkeys, 4x")
    return Table(head, rows).grid()


def policies_stories260k(results: Path) -> str:
    """Stock policies on stories260K."""
    return _policies(read_record(results / "stock_stories260K.json"))


def policies_smollm2(results: Path) -> str:
    """Stock policies on SmolLM2-135M-Instruct."""
    return _policies(read_record(results / "stock_smollm2.json"))


def _policies(record: dict[str, Any]) -> str:
    passkeys = ("passkeys",) if "passkeys" in record["rows"][0] else ()
    rows = [
        (row["policy"] or "none", f"{row['factor']}", f"{row['loss']:.4f}", *(f"{row[each]}" for each in passkeys))
        for row in record["rows"]
    ]
    return Table(("policy", "times less", "loss", *passkeys), rows).grid()


def mixture(results: Path) -> str:
    """Documents and millions of characters of each source of the mixture."""
    record = json.loads((results / "mixture.json").read_text())

    def count(part: str, source: str) -> str:
        sizes = record[part]
        return f"{sizes[f'{source}: documents']:,} / {sizes[f'{source}: characters'] / 1e6:.2f}"

    def cells(source: str) -> tuple[str, ...]:
        if f"unseen/{source}" in record:
            return "-", "-", "-", "-", count(f"unseen/{source}", source)
        parts = ("mixture/train", "mixture/validation", "mixture/test", "search")
        return *(count(part, source) for part in parts), "-"

    duplicates = record["near-duplicates left out"]
    sources = sorted(duplicates, key=lambda source: (f"unseen/{source}" in record, source))
    rows = [(source, *cells(source), f"{duplicates[source]}") for source in sources]
    head = ("source", "training", "validation", "test", "search", "unseen", "near-duplicates left out")
    return Table(head, rows).grid()


def trade_off(results: Path) -> str:
    """The loss of each kind of model with everything kept that it ever reads, and how many tokens that is."""
    record = read_record(results / "tradeoff.json")
    text = next(iter(record["texts"]))
    rows = [("standard", f"{record['context']}", _spread_of(record["baseline"]["losses"][text], 3))]
    for curve in record["curves"]:
        if curve["name"] not in ("H2O", "TOVA", "Window+4"):  # the standard model again
            whole = curve["points"][0]
            rows.append((curve["name"], f"{whole['kv_size']:.0f}", _spread_of(whole["losses"][text], 3)))
    return Table(("", "tokens held", "loss"), rows).grid()


def search_cost(results: Path) -> str:
    """How many layers each mode of the search runs."""
    rows = [
        (
            "floor" if name == "floor" else f"tolerance {name.removesuffix(' nats')}",
            f"{row['lazy']['literal']:,}",
            *(f"{row[mode]['layer_evaluations']:,.0f}" for mode in ("exact", "lazy")),
            f"{row['times_fewer_than_literal']:.1f}",
            *(f"{row[mode]['memory_factor']:.2f}" for mode in ("exact", "lazy")),
        )
        for name, row in read_record(results / "search.json")["thresholds"].items()
    ]
    return Table(("until", "literal", "exact", "lazy", "literal / lazy", "factor, exact", "factor, lazy"), rows).grid()


def searches(results: Path) -> str:
    """The budgets of searches on small models."""
    rows = []
    for kind, name in (("selective", "selective"), ("memory", "selective with the memory loss")):
        for seed in range(3):
            record = read_record(results / f"prune/{kind}-seed{seed}.json")
            losses = (f"{record['report'][each]:.4f}" for each in ("unpruned", "pruned", "baseline"))
            budgets = ", ".join(map(str, record["budgets"]))
            rows.append((name, f"{seed}", *losses, budgets, f"{record['memory_factor']:.0f}"))
    head = ("", "seed", "unpruned", "with these budgets", "the standard model", "budgets", "factor")
    return Table(head, rows).grid()


def under_budgets(results: Path) -> str:
    """Losses after a little training with budgets in force, and without."""
    record = read_record(results / "training_under_budgets.json")
    losses = {model["model"]: next(iter(model["text"].values()))["loss"] for model in record["models"]}

    def loss(model: str, budgets: str) -> str:
        return _spread_of([losses[f"runs/{model}-seed{seed}@{budgets}"] for seed in range(3)], 3)

    before, after, without = "studies/lm_comparison/zoo-selective", "under/with", "under/without"
    rows = [
        ("as it was", loss(before, "4"), loss(before, "none")),
        ("60 steps with these budgets in force", loss(after, "4"), loss(after, "none")),
        ("60 steps without budgets", loss(without, "4"), ""),
    ]
    return Table(("", "loss with K = 4", "unpruned"), rows).grid()


def t5(results: Path) -> str:
    """Validation losses of T5 during its training."""
    return _losses_by_step(results / "t5.json", {"standard": "t5-tiny-standard", "selective": "t5-tiny-selective"})


def language_models(results: Path) -> str:
    """Validation losses of small language models during their training."""
    runs = {"standard": "zoo-standard", "selective": "zoo-selective", "selective with the memory loss": "zoo-memory"}
    return _losses_by_step(results / "lm_comparison.json", runs, (100, 300, 500, 1000, 1500))


def _losses_by_step(path: Path, runs: dict[str, str], steps: tuple[int, ...] = (100, 200, 400)) -> str:
    summary = read_record(path)["summary"]
    rows = [
        (f"{step:,}", *(_spread(summary[run]["by_step"][str(step)]["validation_loss"], 3) for run in runs.values()))
        for step in steps
    ]
    return Table(("step", *runs), rows).grid()


def _spread(value: dict[str, float | None] | float | None, digits: int) -> str:
    """A number, or mean and range over seeds: "4.955 (4.831 to 5.034)"; "never" if a seed has no such number."""
    if not isinstance(value, dict):
        return "never" if value is None else f"{value:,.{digits}f}"
    mean, low, high = (value[name] for name in ("mean", "min", "max"))
    return "never" if mean is None else f"{mean:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _spread_of(values: list[float], digits: int) -> str:
    """Mean and range of the numbers of several seeds."""
    return _spread({"mean": statistics.fmean(values), "min": min(values), "max": max(values)}, digits)


TABLES: dict[str, Callable[[Path], str]] = {
    "what-you-get": what_you_get,
    "decoding": decoding,
    "decoding-stock": decoding_stock,
    "kernel-worst-case": kernel_worst_case,
    "kernel-living": kernel_living,
    "kernel-standard": kernel_standard,
    "gpu-compiled": gpu_compiled,
    "gpu-predicted": gpu_predicted,
    "recipes": recipes,
    "recipes-by-layer": recipes_by_layer,
    "pretrained": pretrained,
    "policies-stories260K": policies_stories260k,
    "policies-SmolLM2": policies_smollm2,
    "mixture": mixture,
    "trade-off": trade_off,
    "search-cost": search_cost,
    "searches": searches,
    "under-budgets": under_budgets,
    "t5": t5,
    "language-models": language_models,
}


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
