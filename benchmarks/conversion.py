"""Recipes for conversion, side by side: `python benchmarks/conversion.py MODEL TEXT --out FILE`.

Each recipe is trained with several seeds on the same documents: the default one, variants of one setting each, and the
control, trained as long without selection. Documents are split into four parts, to train, to compare recipes, to search
for budgets and to report, without duplicates and without documents that have characters outside ASCII (some are wrongly
decoded).

Each model has its loss unpruned and with the same K in every layer, and the memory factors at the original's loss and
at 0.01 above it. The default recipe, the original and the control also get a budget for each layer. Trained models stay
in `--runs`, and measurements next to the record, which is written after each model: the same command resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import random
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from selattn.cache import Budgets
from selattn.conversion import ConversionRun, conversion_run
from selattn.conversion.trainer import Converter
from selattn.data import Reading, documents
from selattn.evaluation.losses import Batch, log_perplexity, make_batches
from selattn.evaluation.text import Text
from selattn.models.loading import Loaded, load
from selattn.pruning import Until, prune
from selattn.training import train
from selattn.training.config import TextData
from selattn.utils import records
from selattn.utils.distributed import Team
from selattn.utils.files import write_text
from selattn.utils.journal import Parts, open_parts
from selattn.utils.progress import Shown

RECIPE, CONTROL = "recipe", "control"
RECIPES: dict[str, tuple[str, ...]] = {
    RECIPE: (),
    CONTROL: (),
    "one mask": ("conversion.masks=1",),
    "freeze first": ("conversion.freeze_first=100",),
    "epsilon 0.1": ("conversion.epsilon=0.1",),
    "epsilon 1": ("conversion.epsilon=1",),
    "lr 2e-4": ("optimizer.lr=2e-4",),
    "lr 1e-3": ("optimizer.lr=1e-3",),
}
OWN = ("selective", "selective-per-head")  # one set of tokens for all heads, or one for each key-value head
STOCK = ("h2o", "tova", "window+4")  # what evicts where nothing selects
SHARES = (2, 3, 4, 6, 8, 10, 12, 16)  # times less memory, the same in every layer
FACTOR, FURTHEST = 8, 16  # of budgets for each layer: what is reported, and how far the search goes
PARTS = {"choice": 96, "search": 32, "report": 128}  # documents; the rest is trained on


def split(source: Path, separator: str, folder: Path) -> dict[str, int]:
    """Write a file of documents for each part; the counts."""
    found = [text.strip() for text in documents(str(source), "train", Reading(separator=separator, validation=0.0))]
    unique = list(dict.fromkeys(found))
    left = [text for text in unique if text.isascii()]
    random.Random(0).shuffle(left)
    counts = {"documents": len(found), "duplicates": len(found) - len(unique), "left out": len(unique) - len(left)}
    start = 0
    for part, size in {**PARTS, "train": len(left) - sum(PARTS.values())}.items():
        chosen = left[start : start + size]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in chosen)
        name = {"train": "text/train", "choice": "text/validation"}.get(part, part)
        write_text(folder / f"{name}.jsonl", lines)
        counts[part] = len(chosen)
        start += size
    return counts


@dataclasses.dataclass(frozen=True)
class Bench:
    """The settings that all measurements share."""

    model: str
    folder: Path
    context: int
    parts: Parts
    sets: dict[str, list[Batch]]

    def loss(self, subject: Loaded, part: str, budgets: Budgets | None, policy: str) -> float:
        """Nats per token on the documents of a part."""
        key = {"what": "loss", "model": subject.fingerprint, "part": part, "policy": policy}
        key |= {"budgets": None if budgets is None else budgets.to_json(), "context": self.context}
        chosen = "none" if budgets is None else policy
        return self.parts.get(key, float, partial(log_perplexity, subject.model, self.sets[part], budgets, chosen))

    def uniform(self, subject: Loaded, policy: str, limit: float) -> dict[str, Any]:
        """The same K in every layer, on the documents of the choice, and where the curve crosses two losses."""
        curve = {1.0: self.loss(subject, "choice", None, "none")}
        for share in SHARES:
            curve[float(share)] = self.loss(subject, "choice", Budgets(self.context // share), policy)
        at = {"equal": crossing(curve, limit), "0.01 above": crossing(curve, limit + 0.01)}
        return {"policy": policy, "losses": {f"{share:g}": loss for share, loss in curve.items()}, "factor": at}

    def by_layer(self, subject: Loaded, policy: str, limits: dict[str, float], where: Path) -> dict[str, Any]:
        """Budgets for each layer: those of `FACTOR`, and the smallest that have no more than the original's loss."""
        text = Text(str(self.folder / "search.jsonl"), reading=Reading(validation=1.0))
        found = prune(
            subject,
            text,
            Until(factor=FURTHEST),
            out=where,
            rows=PARTS["search"],
            report=Text(str(self.folder / "report.jsonl"), reading=Reading(validation=1.0)),
            report_rows=1,
            step=self.context // 16,
            floor=self.context // 32,
            lazy=True,
            policy=policy,
            context=self.context,
            batch=32,
        )
        wide = next(step for step in found.path if step.factor >= FACTOR)
        equal = [step for step in found.path if step.loss <= limits["search"]]
        result: dict[str, Any] = {"policy": policy}
        for name, step in {
            f"{FACTOR} times": wide,
            "equal": max(equal, key=lambda s: s.factor) if equal else None,
        }.items():
            if step is None:
                result[name] = None
                continue
            chosen = Budgets(step.budgets)
            report = self.loss(subject, "report", chosen, policy)
            result[name] = {"budgets": list(step.budgets), "factor": step.factor, "search": step.loss, "report": report}
            result[name]["above the original"] = report - limits["report"]
        return result


def crossing(curve: dict[float, float], limit: float) -> float | None:
    """The largest factor at which a curve is no higher, between points in a line over log(factor); None if never."""
    points = sorted(curve.items())
    if points[0][1] > limit:
        return None
    best = points[0][0]
    for (low, before), (high, after) in itertools.pairwise(points):
        if after <= limit:
            best = high
        else:
            share = (limit - before) / (after - before)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return best


def runs_of(options: argparse.Namespace, name: str, seed: int) -> ConversionRun:
    """The configuration of a recipe and seed."""
    data = TextData(source=str(options.runs / "text"), context=options.context)
    settings = [f"schedule.steps={options.steps}", f"seed={seed}", "checkpoints.every=100", "checkpoints.keep=1"]
    original = load(options.model)
    run = conversion_run(
        options.model,
        data,
        original.description.context,
        [*settings, "evaluation.every=200", "evaluation.rows=96", "evaluation.batch=32", *RECIPES[name]],
        original=original.fingerprint,
    )
    return run.control() if name == CONTROL else run


def measured(bench: Bench, name: str, seed: int, model: Path, limits: dict[str, float]) -> dict[str, Any]:
    """All measurements of one trained model."""
    subject = load(model)
    policies = STOCK if name == CONTROL else OWN[:1] if "conversion.masks=1" in RECIPES[name] else OWN
    found: dict[str, Any] = {"recipe": name, "seed": seed, "settings": list(RECIPES[name])}
    found["unpruned"] = {part: bench.loss(subject, part, None, "none") for part in bench.sets}
    found["uniform"] = [bench.uniform(subject, policy, limits["choice"]) for policy in policies]
    if name in (RECIPE, CONTROL):
        searches = [bench.folder / "searches" / f"{name}-{seed}-{policy}" for policy in policies]
        found["by layer"] = [
            bench.by_layer(subject, policy, limits, where) for policy, where in zip(policies, searches, strict=True)
        ]
    return found


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and range over the seeds; a None, which means never, counts as the worst."""
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return {"mean": None, "min": None, "max": max(there, default=None)}
    return {"mean": statistics.fmean(there), "min": min(there), "max": max(there)}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """For each recipe and policy, over the seeds."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(run["recipe"] for run in runs):
        same = [run for run in runs if run["recipe"] == name]
        found[name] = {"seeds": len(same), "unpruned": spread([run["unpruned"]["choice"] for run in same])}
        for place, curve in enumerate(same[0]["uniform"]):
            curves = [run["uniform"][place] for run in same]
            at = {key: spread([each["factor"][key] for each in curves]) for key in curve["factor"]}
            losses = {share: spread([each["losses"][share] for each in curves]) for share in curve["losses"]}
            found[name][curve["policy"]] = {"factor": at, "losses": losses}
            if "by layer" in same[0]:
                wide = [run["by layer"][place][f"{FACTOR} times"] for run in same]
                equal = [run["by layer"][place]["equal"] for run in same]
                found[name][curve["policy"]]["by layer"] = {
                    f"{FACTOR} times, above the original": spread([each["above the original"] for each in wide]),
                    "factor at equal search loss": spread([None if e is None else e["factor"] for e in equal]),
                    "its loss above the original": spread(
                        [None if e is None else e["above the original"] for e in equal]
                    ),
                }
    return found


def show(body: dict[str, Any], console: Console) -> None:
    """A line for each recipe and policy."""
    table = Table("recipe", "policy", "unpruned", "factor, equal", "factor, +0.01", f"{FACTOR}x by layer")
    for name, found in body["summary"].items():
        for policy, values in found.items():
            if policy in ("seeds", "unpruned"):
                continue
            cells = [values["factor"]["equal"]["mean"], values["factor"]["0.01 above"]["mean"]]
            wide = values.get("by layer", {}).get(f"{FACTOR} times, above the original", {}).get("mean")
            shown = ["never" if cell is None else f"{cell:.1f}" for cell in cells]
            table.add_row(
                name, policy, f"{found['unpruned']['mean']:.4f}", *shown, "" if wide is None else f"{wide:+.4f}"
            )
    console.print(table)


def main() -> None:
    """Train and measure what is missing, show, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where the record goes")
    parser.add_argument("--runs", type=Path, default=Path("runs/conversion"), help="where the runs go")
    parser.add_argument("--separator", default="single", help="between documents of the text")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    options = parser.parse_args()
    counts = split(options.text, options.separator, options.runs)
    original, console = load(options.model), Console(stderr=True)
    texts = {"choice": options.runs / "text" / "validation.jsonl"}
    texts |= {part: options.runs / f"{part}.jsonl" for part in ("search", "report")}
    sets = {}
    for part, file in texts.items():
        rows = Text(str(file), reading=Reading(validation=1.0)).rows(original.tokenizer, options.context)
        sets[part] = make_batches(rows.take(PARTS[part]), 32)
    with open_parts(options.out, Team()) as parts:
        bench = Bench(options.model, options.runs, options.context, parts, sets)
        limits = {part: bench.loss(original, part, None, "none") for part in sets}
        stock = {
            "unpruned": limits,
            "uniform": [bench.uniform(original, policy, limits["choice"]) for policy in STOCK],
            "by layer": [
                bench.by_layer(original, policy, limits, options.runs / "searches" / f"original-{policy}")
                for policy in STOCK
            ],
        }
        body = {"model": Path(options.model).name, "fingerprint": original.fingerprint, "text": options.text.name}
        body |= {"documents": counts, "context": options.context, "steps": options.steps, "original": stock}
        wanted, runs = [(name, seed) for name in options.recipes for seed in options.seeds], []
        for done, (name, seed) in enumerate(wanted, 1):
            where = options.runs / f"{name.replace(' ', '-')}-{seed}"
            console.print(f"[bold]{name}, seed {seed}[/]")
            progress = Shown(console, keep=True)
            trained = train(runs_of(options, name, seed), where, resume=True, progress=progress, maker=Converter())
            if trained.interrupted:
                raise SystemExit("stopped with a checkpoint; the same command goes on")
            runs.append(measured(bench, name, seed, where / "model", limits))
            missing = [f"{other}, seed {number}" for other, number in wanted[done:]]
            body |= {"runs": runs, "summary": summary(runs), "missing": missing}
            records.write_record(options.out, body, options.seeds)
        parts.remove()
    show(body, console)


if __name__ == "__main__":
    main()
