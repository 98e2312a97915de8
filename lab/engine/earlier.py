"""What other commands had recorded before there were experiments, as records of the experiments that they fit.

Nothing is measured here: `selattn eval`, and commands of earlier versions, have written these numbers to `results/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.engine.frame import Cell, Claim, Reproduction
from lab.engine.trio import TITLES
from lab.engine.verdicts import differences
from lab.experiments import find_experiment
from selattn.utils.records import read_record

Values = tuple[float | None, ...]
_YOUNG = "of models too young to say more"
_ENWIK = "enwik8-clean, d=3, context 512, learned positions, 3 million tokens"


def earlier_records(results: Path) -> list[Reproduction]:
    """Those that are there, in the order of the list below."""
    return [found for name, read in _READERS.items() if (results / name).is_file() for found in read(results / name)]


def _make(
    name: str,
    file: Path,
    data: str,
    seeds: Sequence[int],
    cells: Sequence[Cell],
    claims: Sequence[Claim],
    notes: Sequence[str] = (),
) -> Reproduction:
    about = find_experiment(name)
    return Reproduction(
        experiment=name,
        paper=about.paper,
        sentence=about.sentence,
        scale="laptop",
        data=data,
        seeds=tuple(seeds),
        cells=tuple(cells),
        claims=tuple(claims),
        notes=tuple(notes),
        settings={},
        models=(),
        earlier=f"results/{file.name}",
    )


def _runs(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The runs of a study by one name, by their seeds."""
    return sorted((run for run in record["runs"] if run["run"] == name), key=lambda run: int(run["seed"]))


def _courses(file: Path) -> Iterator[Reproduction]:
    """Of the study lm_comparison."""
    record = read_record(file)
    kinds = {kind: _runs(record, f"zoo-{kind}") for kind in TITLES}
    losses = {
        kind: {at["step"]: tuple(_at(run, at["step"]) for run in runs) for at in runs[0]["evaluations"]}
        for kind, runs in kinds.items()
    }
    per_step = record["runs"][0]["config"]["batch"]["size"] * record["runs"][0]["config"]["data"]["context"]
    cells = []
    shown = [step for step in losses["standard"] if step % 500 == 0 or step == 100]
    for step in shown:
        row = f"{step * per_step / 1e6:.1f}M tokens"
        cells += [Cell(row, TITLES[kind], losses[kind][step]) for kind in kinds]
        cells.append(
            Cell(row, "gap: standard less selective", differences(losses["standard"][step], losses["selective"][step]))
        )
    last = shown[-1]
    gap = differences(losses["standard"][last], losses["selective"][last])
    claim = Claim(
        "With learned positions, as in the paper, selective attention has the smaller loss.", gap,
        "standard's loss less selective's at the end, nats", paper=0.04,
    )  # fmt: skip
    yield _make("course-learned", file, _ENWIK, [run["seed"] for run in kinds["standard"]], cells, [claim])


def _at(run: dict[str, Any], step: int) -> float | None:
    return next((at["validation"]["loss"] for at in run["evaluations"] if at["step"] == step), None)


def _assignment(file: Path) -> Iterator[Reproduction]:
    """Of the study variable_assignment: a smaller task."""
    record = read_record(file)
    kinds = {kind: _runs(record, f"variable-assignment-small-{kind}") for kind in ("standard", "selective")}
    cells, right = [], {}
    for step, when in ((100, "after 100 steps"), (None, "at the end")):
        for name, title in (("validation", "in distribution"), ("out_of_distribution", "out of distribution")):
            for kind, runs in kinds.items():
                values = tuple(_accuracy(run, name, step) for run in runs)
                right[kind, name, step] = values
                cells.append(Cell(f"{title}, {when}: accuracy", kind, values, digits=1, percent=True))
    what = "accuracy of selective less that of standard, {}, after 100 steps"
    more = {
        name: differences(right["selective", name, 100], right["standard", name, 100])
        for name in ("validation", "out_of_distribution")
    }
    claims = [
        Claim("Selective attention learns Variable Assignment far sooner.",
              more["validation"],
              what.format("in distribution"), paper=0.74),
        Claim("Standard attention does not generalize as well.",
              more["out_of_distribution"],
              what.format("out of distribution"), paper=0.30),
    ]  # fmt: skip
    data = "3 variables, 100 values, 16 assignments, d=2, 200 steps of 256 rows"
    yield _make("variable-assignment", file, data, [run["seed"] for run in kinds["standard"]], cells, claims)


def _accuracy(run: dict[str, Any], name: str, step: int | None) -> float | None:
    if step is None:
        found: float = run["evaluation"][name]["accuracy"]
        return found
    return next((at[name]["accuracy"] for at in run["evaluations"] if at["step"] == step), None)


def _t5(file: Path) -> Iterator[Reproduction]:
    """Of the study t5: shorter runs."""
    record = read_record(file)
    kinds = {kind: _runs(record, f"t5-tiny-{kind}") for kind in ("standard", "selective")}
    losses: dict[str, Values] = {
        kind: tuple(run["evaluation"]["validation"]["loss"] for run in runs) for kind, runs in kinds.items()
    }
    config = kinds["standard"][0]["config"]
    data = (
        f"enwik8-clean, span corruption, context {config['data']['context']}, {config['schedule']['steps']:,} steps of "
        f"{config['batch']['size']} rows"
    )
    claim = Claim(
        "T5 is better with selective attention (tiny).", differences(losses["standard"], losses["selective"]),
        "loss of standard less that of selective, nats",
    )  # fmt: skip
    cells = [Cell("T5, tiny", kind, values) for kind, values in losses.items()]
    yield _make("t5", file, data, [run["seed"] for run in kinds["standard"]], cells, [claim])


def _tradeoff(file: Path) -> Iterator[Reproduction]:
    """Of merged records of `selattn eval --curve`."""
    record = read_record(file)
    seeds = [each["training_seed"] for each in record["records"]]
    names = {text: "long documents" if text.endswith(", long") else "all documents" for text in record["texts"]}
    curves = {curve["name"]: curve for curve in record["curves"]}
    papers = {("selective", "all documents"): 5.0, ("selective, memory loss", "all documents"): 16.0}
    papers |= {("selective, memory loss", "long documents"): 12.0}
    cells, factors = [], {}
    for text, title in names.items():
        for name in ("selective", "selective, memory loss"):
            values: Values = tuple(curves[name]["at_the_baselines_loss"][text]["memory_factors"])
            factors[name, title] = values
            row = f"times less memory at the standard loss, {title}"
            cells.append(Cell(row, name, values, papers.get((name, title)), 1))
    claim = Claim(
        "Selective attention holds the standard model's loss with several times less memory.",
        factors["selective", "all documents"], "times less memory at the standard model's loss", 1.0, paper=5.0,
        digits=1, caveat=_YOUNG,
    )  # fmt: skip
    young = "The models are so young that a few tokens are enough: these factors say nothing about a trained model."
    yield _make("efficiency", file, _ENWIK, seeds, cells, [claim], [young])
    unequal = "Only the selective models have searched budgets: the columns cannot be compared with each other."
    yield _make("comparison", file, _ENWIK, seeds, _compared(curves, names), [], [young, unequal])


def _compared(curves: dict[str, Any], names: dict[str, str]) -> list[Cell]:
    """Every method at the same sizes."""
    cells = []
    text = next(text for text, title in names.items() if title == "all documents")
    for name in ("selective", "selective, memory loss", "H2O", "TOVA", "Window+4"):
        for point in curves[name]["points"]:
            if point["kv_size"] in (128, 32, 8):
                row = f"loss, {point['kv_size']:g} tokens a layer, all documents"
                cells.append(Cell(row, name, tuple(point["losses"][text])))
    return cells


def _under_budgets(file: Path) -> Iterator[Reproduction]:
    """Of `selattn eval`, before and after a little training with budgets in force."""
    record = read_record(file)
    losses = {model["model"]: next(iter(model["text"].values()))["loss"] for model in record["models"]}
    seeds = [seed for seed in range(3) if f"runs/under/with-seed{seed}@4" in losses]
    rows = {
        "as it was": "runs/studies/lm_comparison/zoo-selective-seed{}@4",
        "trained with the budgets": "runs/under/with-seed{}@4",
        "trained without": "runs/under/without-seed{}@4",
    }
    found = {row: tuple(losses[name.format(seed)] for seed in seeds) for row, name in rows.items()}
    cells = [Cell(row, "loss with 4 tokens a layer, unseen documents", values) for row, values in found.items()]
    claim = Claim(
        "Training on with the budgets in force helps the pruned model.",
        differences(found["trained without"], found["trained with the budgets"]),
        "loss after training without the budgets less that after training with them, nats",
    )
    yield _make("after-pruning", file, f"{_ENWIK}, then 60 steps more", seeds, cells, [claim])


_READERS: dict[str, Callable[[Path], Iterator[Reproduction]]] = {
    "lm_comparison.json": _courses,
    "variable_assignment.json": _assignment,
    "t5.json": _t5,
    "tradeoff.json": _tradeoff,
    "training_under_budgets.json": _under_budgets,
}
