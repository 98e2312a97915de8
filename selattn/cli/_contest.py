"""The second half of `selattn demo`: two small models learn Variable Assignment, one with selective attention."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from selattn.cli import _draw
from selattn.data import VariableAssignment
from selattn.training import RunConfig
from selattn.training.contest import KINDS, Contest, contest, contest_runs
from selattn.training.display import Bar, Display, Lines
from selattn.training.record import LogLine


class Evaluations(Lines):
    """Where there is no terminal for a bar: a line now and then."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console)
        self.title = title

    def record(self, record: LogLine) -> None:
        """Leave the training records out."""
        if "evaluation" in record:
            right = " and ".join(f"{found['accuracy']:.1%}" for found in record["evaluation"].values())
            self.console.print(f"{self.title} attention, step {record['step']}: {right} right")


def show_contest(console: Console, steps: int | None) -> bool:
    """Train both and show what came of it; False if it was interrupted."""
    run = contest_runs(steps)["selective"]
    assert isinstance(run.data, VariableAssignment)
    introduce(run.data, run, console)
    found = contest(steps, lambda kind: _display(console, kind))
    if found is None:
        return False
    console.print()
    draw_accuracy(found, run.data, console)
    draw_kept(found, console)
    console.print(f"[dim]{found.seconds:.0f} seconds of training and evaluation[/]\n")
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


def draw_accuracy(found: Contest, task: VariableAssignment, console: Console) -> None:
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
        right = [found.scores[kind][name].accuracy or 0.0 for kind in KINDS]
        best = max(right)
        table.add_row(label, *(Text(f"{a:.1%}", "bold green" if a == best else "") for a in right), f"{chance:.0%}")
    console.print(table, "")


def draw_kept(found: Contest, console: Console) -> None:
    """What each layer of the selective model keeps; a standard one keeps all."""
    kept = [share or 0.0 for share in found.scores["selective"]["validation"].kept or ()]  # every layer selects
    console.print("[bold]What the selective model keeps[/]  of a sequence at most (standard: all)")
    labels = [f"layer {layer}" for layer in range(1, len(kept) + 1)]
    console.print(_draw.bars(labels, {"": kept}, width=min(console.width, 104) // 2), "")


def _display(console: Console, kind: str) -> Display:
    return Bar(console, f"{kind} attention") if console.is_terminal else Evaluations(console, kind)
