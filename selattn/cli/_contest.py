"""The second half of `selattn demo`: two small models learn Variable Assignment, one with selective attention."""

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from selattn.cli import _draw
from selattn.data import VariableAssignment
from selattn.training import Finished, RunConfig, train
from selattn.training.display import Bar, Display, Lines
from selattn.training.runs import find_run

KINDS = ("selective", "standard")


class Evaluations(Lines):
    """Where there is no terminal for a bar: a line now and then."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console)
        self.title = title

    def record(self, record: dict[str, Any]) -> None:
        """Leave the training records out."""
        if "evaluation" in record:
            right = " and ".join(f"{found['accuracy']:.1%}" for found in record["evaluation"].values())
            self.console.print(f"{self.title} attention, step {record['step']}: {right} right")


def contest(console: Console, steps: int | None) -> bool:
    """Train both and show what came of it; False if it was interrupted."""
    runs = {kind: _run(kind, steps) for kind in KINDS}
    task = runs["selective"].data
    assert isinstance(task, VariableAssignment)
    introduce(task, runs["selective"], console)
    finished: dict[str, Finished] = {}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for kind, run in runs.items():
            finished[kind] = train(run, Path(folder) / kind, display=_display(console, kind))
            if finished[kind].interrupted:
                return False
    console.print()
    draw_accuracy(finished, task, console)
    draw_kept(finished, console)
    console.print(f"[dim]{time.perf_counter() - begun:.0f} seconds of training and evaluation[/]\n")
    return True


def introduce(task: VariableAssignment, run: RunConfig, console: Console) -> None:
    """What is going to happen, and a sample of it."""
    from selattn.training.model import model_config

    layers = model_config(run).num_hidden_layers
    console.rule("[bold]The same, learned", align="left")
    console.print(
        f"\nTwo models of {layers} layers, equal but for their attention, see {run.schedule.steps} batches of "
        f"{run.batch.size} samples with {task.assignments} assignments of {task.values} values to {task.variables} "
        "variables. One sample, whose last token is the answer:\n"
    )
    console.print(Text(task.render(task.dataset(0, 1)[0]["input_ids"]), "cyan"), end="\n\n")


def draw_accuracy(finished: dict[str, Finished], task: VariableAssignment, console: Console) -> None:
    """Both accuracies side by side, beside chance."""
    few = task.out_of_distribution().drawn_values
    rows = {
        f"{task.values} values (as trained)": ("validation", 1 / task.values),
        f"{few} values (never seen)": ("out_of_distribution", 1 / (few or 1)),
    }
    table = Table(title="Right answers", title_justify="left", title_style="bold")
    table.add_column("")
    for kind in KINDS:
        table.add_column(f"{kind} attention", justify="right")
    table.add_column("chance", justify="right", style="dim")
    for label, (name, chance) in rows.items():
        found = [finished[kind].record["evaluation"][name]["accuracy"] for kind in KINDS]
        best = max(found)
        table.add_row(label, *(Text(f"{a:.1%}", "bold green" if a == best else "") for a in found), f"{chance:.0%}")
    console.print(table, "")


def draw_kept(finished: dict[str, Finished], console: Console) -> None:
    """What each layer of the selective model keeps; a standard one keeps all."""
    kept = finished["selective"].record["evaluation"]["validation"]["kept"]
    console.print("[bold]What the selective model keeps[/]  of a sequence at most (standard: all)")
    labels = [f"layer {layer}" for layer in range(1, len(kept) + 1)]
    console.print(_draw.bars(labels, {"": kept}, width=min(console.width, 104) // 2), "")


def _run(kind: str, steps: int | None) -> RunConfig:
    run = find_run(f"variable-assignment-small-{kind}")
    run = dataclasses.replace(run, checkpoints=dataclasses.replace(run.checkpoints, every=run.schedule.steps))
    if steps is None:
        return run
    schedule = dataclasses.replace(run.schedule, steps=steps, warmup=min(run.schedule.warmup, steps))
    return dataclasses.replace(run, schedule=schedule)


def _display(console: Console, kind: str) -> Display:
    return Bar(console, f"{kind} attention") if console.is_terminal else Evaluations(console, kind)
