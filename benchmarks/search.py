"""The budget search counted: layer evaluations of the paper's procedure, of exact mode and of lazy mode.

`python benchmarks/search.py MODEL --data TEXT`: both modes search on the same rows until no layer can give more. A
layer evaluation is one layer run over all rows. The literal procedure runs all layers for each candidate of each
iteration; that is counted, not run, since exact mode takes the same path. Then, for several tolerances, the
evaluations of each mode and its memory factor.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from selattn.data import Reading
from selattn.evaluation import make_batches
from selattn.evaluation.text import Text
from selattn.models.loading import load
from selattn.pruning import Procedure, Step, Trials, Until, chosen, first_step, steps
from selattn.utils import records


def literal(path: list[Step], procedure: Procedure, stop: int) -> int:
    """Layer evaluations of the procedure as the paper writes it, up to and including iteration `stop`."""
    layers = len(path[0].budgets)
    return layers + sum(layers * len(procedure.candidates(step.budgets)) for step in path[:stop])


def walk(model: Any, batches: Any, procedure: Procedure, title: str) -> list[Step]:
    """The whole path."""
    trials = Trials(model, batches, (procedure.context,) * model.description.layers)
    path = [first_step(trials)]
    todo = procedure.iterations(model.description.layers)
    for step in track(steps(trials, procedure, path[:1]), title, total=todo, console=Console(stderr=True)):
        path.append(step)
    return path


def compare(exact: list[Step], lazy: list[Step], procedure: Procedure, until: Until) -> dict[str, Any]:
    """Evaluations and memory factor of both modes at a threshold. The search has to see one iteration beyond it."""
    found: dict[str, Any] = {}
    for name, path in (("exact", exact), ("lazy", lazy)):
        best = chosen(path, until, procedure.context)[0]
        stop = min(best + 1, len(path) - 1)
        found[name] = {
            "memory_factor": path[best].factor,
            "loss": path[best].loss,
            "budgets": list(path[best].budgets),
            "iterations": stop,
            "layer_evaluations": path[stop].work["layer_evaluations"],
            "seconds": path[stop].work["seconds"],
            "literal": literal(path, procedure, stop),
        }
    found["times_fewer_than_literal"] = found["lazy"]["literal"] / found["lazy"]["layer_evaluations"]
    found["exact_times_fewer_than_literal"] = found["exact"]["literal"] / found["exact"]["layer_evaluations"]
    found["lazy_factor_over_exact"] = found["lazy"]["memory_factor"] / found["exact"]["memory_factor"]
    return found


def draw(rows: dict[str, dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="layer evaluations until the threshold", title_justify="left")
    for heading in ("tolerance", "literal", "exact", "lazy", "times fewer", "factor exact", "factor lazy"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        spent = [f"{row[mode]['layer_evaluations']:,.0f}" for mode in ("exact", "lazy")]
        factors = [f"{row[mode]['memory_factor']:.2f}" for mode in ("exact", "lazy")]
        table.add_row(name, f"{row['lazy']['literal']:,}", *spent, f"{row['times_fewer_than_literal']:.1f}", *factors)
    console.print(table)


def main() -> None:
    """Search, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, a run's folder, or zoo:NAME")
    parser.add_argument("--data", default="embedded")
    parser.add_argument("--layout", default="packed")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, help="default: the model's")
    parser.add_argument("--step", type=int, default=8)
    parser.add_argument("--tolerance", type=float, nargs="+", default=[0.005, 0.01, 0.02, 0.05])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/search.json")
    args = parser.parse_args()
    loaded = load(args.model)
    model = loaded.model
    context = args.context or loaded.description.context
    text = Text(args.data, layout=args.layout, seed=args.seed, reading=Reading())
    batches = make_batches(text.rows(loaded.tokenizer, context).take(args.rows), args.batch)
    began = time.perf_counter()
    modes = {name: Procedure(context, args.step, lazy=name == "lazy") for name in ("lazy", "exact")}
    paths = {name: walk(model, batches, procedure, name) for name, procedure in modes.items()}
    thresholds = {f"{t:g} nats": Until(tolerance=t) for t in args.tolerance} | {"floor": Until()}
    rows = {name: compare(paths["exact"], paths["lazy"], modes["exact"], until) for name, until in thresholds.items()}
    draw(rows, Console())
    data = {
        "model": args.model,
        "layers": loaded.description.layers,
        "context": context,
        "step": args.step,
        "tokens": sum(batch.tokens for batch in batches),
        "unpruned_loss": paths["exact"][0].loss,
        "seconds": time.perf_counter() - began,
        "thresholds": rows,
        "paths": {
            name: [[step.layer, step.loss, step.work["layer_evaluations"]] for step in path]
            for name, path in paths.items()
        },
    }
    print(records.write_record(args.out, data, seed=args.seed))


if __name__ == "__main__":
    main()
