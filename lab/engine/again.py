"""Run a record again and compare: the same machine and threads give the same numbers, to the last digit."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.engine.frame import Reproduction
from lab.engine.progress import Overview
from lab.engine.run import reproduce, sources_of
from lab.experiments import find_experiment
from lab.runs.scales import find_scale
from selattn.errors import SelattnError
from selattn.utils.records import Provenance, machine, read_body, revision, versions


@dataclass(frozen=True)
class Compared:
    """A record beside what came of running it again.

    Attributes:
        numbers: how many were compared.
        differ: what differs: the place, the number in the record, the one of now.
        around: what of machine, versions and commit is not as it was.
    """

    numbers: int
    differ: tuple[str, ...]
    around: tuple[str, ...]


def again(
    path: str | Path,
    *,
    source: str | None = None,
    store: str | Path | None = None,
    questions: str | Path | None = None,
    overview: Overview | None = None,
) -> Compared | None:
    """Carry out the experiment of a record once more; None if Ctrl-C has ended a training.

    Args:
        path: the record.
        source: the text, where it lies elsewhere than the record says.
        store: of trained models, which are not trained again then; None trains everything anew, and leaves nothing.
        questions: a folder with the questions of the downstream tasks, if it had one.
        overview: is shown how trainings proceed.
    """
    record, made = read_body(path, Reproduction), read_body(path, Provenance)
    if record.earlier is not None:
        raise SelattnError(f"{path} was taken from {record.earlier}: run that one's command")
    source, texts = source or record.settings["source"], record.settings.get("texts") or {}  # which every record has
    if record.scale == "smoke":
        source = None
    read = sources_of([find_experiment(record.experiment)], find_scale(record.scale, source, texts))
    with tempfile.TemporaryDirectory() as folder:
        found = reproduce(
            record.experiment,
            record.scale,
            source=source if source in read else None,
            texts={name: text for name, text in texts.items() if text in read},
            seeds=record.seeds,
            positions=record.settings.get("positions"),
            settings=record.settings.get("set", ()),
            store=Path(folder) / "store" if store is None else store,
            out=Path(folder) / "out",
            questions=questions,
            overview=overview,
        )
        if found is None:
            return None
    return compare(find_experiment(record.experiment).concluded(record), found[0].record, made)


def compare(before: Reproduction, now: Reproduction, made: Provenance) -> Compared:
    """Every number of the tables and claims, these as the code of now puts them."""
    numbers = {**_numbers(before)}
    fresh = _numbers(now)
    differ = [
        f"{place}: {numbers.get(place)} in the record, {fresh.get(place)} now"
        for place in dict.fromkeys([*numbers, *fresh])
        if numbers.get(place) != fresh.get(place)
    ]
    return Compared(len(numbers), tuple(differ), _around(made))


def _numbers(record: Reproduction) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for cell in record.cells:
        for of, value in zip(record.values, cell.values, strict=True):
            found[f"{cell.row}, {cell.column}, seed {of}"] = value
    for claim in record.claims:
        found |= {f"{claim.text} ({number})": value for number, value in enumerate(claim.values)}
    return found


def _around(made: Provenance) -> tuple[str, ...]:
    """What may excuse a difference."""
    found = []
    here = {**versions(), **machine(), "commit": revision()["commit"]}
    there = {**made.versions, **made.machine, "commit": made.commit}
    for name in there:
        if name in here and there[name] != here[name]:
            found.append(f"{name} was {there[name]} and is {here[name]}")
    return tuple(found)
