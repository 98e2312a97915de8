"""What `python -m lab demo` shows in a terminal: a sentence and a bar for each stage, and what came of it."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from lab.demo import draw as _draw
from lab.demo.contest import KINDS, Contest
from lab.demo.story import Pruning, Show
from lab.tasks import VariableAssignment
from selattn.evaluation.traces import Trace
from selattn.utils.progress import Progress, Shown
from selattn.utils.tables import Table, byte_size


class Training(Shown):
    """A bar with the loss; what came of it is shown at the end, and the command says itself what interrupts it."""

    def say(self, text: str) -> None:
        """Leave the evaluations out."""


class Evaluations(Progress):
    """Where there is no terminal for a bar: a line for each evaluation."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title

    def say(self, text: str) -> None:
        if text.startswith("step "):
            self.console.print(f"{self.title} attention, {text}", markup=False)


class Terminal(Show):
    """Shows a story as it happens."""

    def __init__(self, console: Console) -> None:
        self.console, self.progress, self._number = console, Shown(), 0

    def close(self) -> None:
        """Nothing is done any more."""
        self.progress.end()

    def chapter(self, title: str, sentence: str) -> None:
        """The title and the sentence."""
        self.close()
        self._number += 1
        self.console.print()
        self.console.rule(f"[bold]{self._number}. {title}", align="left")
        self.console.print(sentence, end="\n\n")

    def training(self, kind: str) -> Progress:
        """A bar for each of the two."""
        if self.console.is_terminal:
            self.console.print(f"[bold]{kind} attention[/]")
            return Training(self.console, keep=True)
        return Evaluations(self.console, kind)

    def learned(self, found: Contest, task: VariableAssignment) -> None:
        """Both accuracies side by side, beside chance, and what each layer keeps."""
        few = task.out_of_distribution().drawn_values or 1
        rows = {
            f"{task.values} values (as trained)": ("validation", task.values),
            f"{few} values (never seen)": ("out_of_distribution", few),
        }
        body, styles = [], {}
        for number, (label, (name, values)) in enumerate(rows.items()):
            right = [found.scores[kind][name].accuracy or 0.0 for kind in KINDS]
            styles[number, 1 + right.index(max(right))] = "bold green"
            body.append((label, *(f"{share:.1%}" for share in right), f"{1 / values:.0%}"))
        head = ("", *(f"{kind} attention" for kind in KINDS), "chance")
        self.console.print(Table(head, body, "Right answers", styles=styles).rich(), "")
        kept = [share or 0.0 for share in found.scores["selective"]["validation"].kept or ()]  # every layer selects
        self.console.print("[bold]What the selective model needs[/]  of a sequence at most (standard: all)")
        labels = [f"layer {layer}" for layer in range(len(kept))]
        self.console.print(_draw.bars(labels, {"": kept}, width=min(self.console.width, 104) // 2))

    def saw(self, traces: dict[str, Trace]) -> None:
        """The sample as its question sees it: struck through what is masked, in blue what is read most."""
        self.close()
        trace = traces["selective"]
        at = trace.size - 2
        for layer in range(trace.layers):
            F, read = trace.F(layer)[at], int(trace.weights(layer)[at, : at + 1].argmax())
            line = Text(f"layer {layer}  ", "dim")
            for place, token in enumerate(trace.tokens[: at + 1]):
                style = "bold white on blue" if place == read else "strike red" if F[place] > 1 else ""
                line.append(" " if place else "").append(token.strip(), style)
            self.console.print(line)
        self.console.print(f"[dim]red: masked; blue: read most; the answer is{trace.tokens[-1]}[/]")

    def pruned(self, found: Pruning) -> None:
        """The whole cache beside the small one."""
        self.close()
        sides = (found.whole, found.small)
        rows = [("loss, nats per token", *(f"{side.loss:.4f}" for side in sides))]
        if found.whole.right is not None:
            right = (f"{side.right:.1%}" for side in sides)
            rows.append((f"right answers of {found.whole.questions:,}", *right))
        rows.append(("bytes of the cache", *(byte_size(side.decoding.cache_bytes) for side in sides)))
        rows.append(("tokens per second", *(f"{side.decoding.tokens_per_second:,.0f}" for side in sides)))
        title = f"{found.name}: K = {list(found.best.budgets)} of {found.context}"
        self.console.print(Table(("", "whole cache", "small cache"), rows, title).rich())
        self.console.print(f"[bold]{found.best.factor:.1f} times[/] fewer tokens are kept.")


def show_story(console: Console, steps: int | None, file: Path) -> bool:
    """Tell it, and write the report, whose path is the last line; False if it was interrupted."""
    import tempfile

    from lab.demo.page import story_report
    from lab.demo.story import Sizes, tell_story
    from selattn.utils.records import provenance

    show = Terminal(console)
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = tell_story(folder, Sizes(steps=steps), show)
            if found is None:
                return False
            story_report(found, provenance(found.runs["selective"].seed)).save(file)
    finally:
        show.close()
    console.print(f"\n{found.seconds:,.0f} seconds. The report:")
    console.print(str(file), soft_wrap=True, markup=False)
    return True
