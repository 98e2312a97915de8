"""What `python -m lab` shows: tables with verdicts, the list of experiments, and a record that is run again."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from lab.engine.run import Outcome

DIFFERS = 1  # the exit code if a record that is run again gives other numbers


def show(found: Sequence["Outcome"], console: "Console") -> None:
    """Every table, what it says of the claims, and where it is."""
    from rich.markup import escape

    from lab.engine.tables import table_of
    from lab.engine.verdicts import verdict

    for outcome in found:
        record = outcome.record
        if record.cells:
            console.print(table_of(record).markdown(), markup=False, soft_wrap=True)
        for claim in record.claims:
            console.print(f"[bold]{verdict(claim, record.scale)}[/]: {escape(claim.text)}", soft_wrap=True)
        console.print(f"[dim]{' '.join(map(str, outcome.files))}[/]\n", soft_wrap=True)


def list_experiments(console: "Console", names: Sequence[str], out: Path) -> None:
    """A table of them: what each is, how long it takes on a laptop, and at which scales there is a record."""
    from lab.engine.cost import in_words, seconds
    from lab.engine.earlier import earlier_records
    from lab.experiments import EXPERIMENTS, find_experiment
    from lab.runs.scales import find_scale
    from selattn.utils.tables import Table

    rows = []
    before = earlier_records(out.parent)
    for each in [find_experiment(name) for name in names] or EXPERIMENTS.values():
        laptop = find_scale("laptop")
        time = seconds(each.needs(laptop, laptop.seeds).values()) if "laptop" in each.scales else None
        there = [scale for scale in each.scales if (out / scale / f"{each.name}.json").is_file()]
        there += [Path(str(record.earlier)).name for record in before if record.experiment == each.name]
        scales = "all" if len(each.scales) == 3 else ", ".join(each.scales)
        laptops = "" if time is None else in_words(time)
        rows.append((each.name, each.paper, each.sentence, scales, laptops, ", ".join(there)))
    head = ("name", "in the paper", "what", "scales", "laptop", "recorded")
    console.print(Table(head, rows, left=range(1, len(head)), whole=[0]).rich())
    console.print("[dim]laptop: about how long its trainings take on 2 cores, with nothing in the store[/]")


def run_again(record: Path, store: Path | None, questions: Path | None, console: "Console") -> int:
    """Run a record again, and say what differs."""
    from lab.engine.again import again
    from lab.engine.progress import ShownOverview
    from selattn.cli.main import INTERRUPTED

    found = again(record, store=store, questions=questions, overview=ShownOverview())
    if found is None:
        console.print("stopped; nothing was kept" if store is None else "stopped; the same command goes on")
        return INTERRUPTED
    for line in found.differ:
        console.print(line, soft_wrap=True, markup=False)
    same = found.numbers - len(found.differ)
    console.print(f"{same} of {found.numbers} numbers are the same", soft_wrap=True)
    for line in found.around if found.differ else ():
        console.print(f"[dim]{line}[/]", soft_wrap=True)
    return DIFFERS if found.differ else 0
