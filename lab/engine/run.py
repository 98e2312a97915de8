"""Train what is missing, measure, and write: `reproduce("efficiency", scale="laptop", source="my.txt")`.

It can be interrupted at any time, and the same call goes on: trainings from their checkpoints, searches from their last
iteration, and what has been measured is not measured again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.engine.frame import Experiment, Need, Reproduction
from lab.engine.lab import InterruptedTraining, Lab, Memory
from lab.engine.progress import Overview
from lab.engine.recorded import Records
from lab.engine.settings import check_settings, with_reading
from lab.engine.store import Store
from lab.engine.tables import table_of
from lab.experiments import EXPERIMENTS, find_experiment
from lab.runs.scales import Scale, find_scale
from lab.tasks import Task
from selattn.errors import SelattnError
from selattn.utils.distributed import Team
from selattn.utils.files import write_text
from selattn.utils.journal import Parts, open_parts
from selattn.utils.records import check_output, read_body, write_record
from selattn.views.plot.style import write_figure

STORE, OUT = Path("runs/reproduce"), Path("results/reproduce")
NOTHING, TASK = "nothing is trained", "sequences of the task"  # where a record says what its models read
MEASURED = "measured"  # in the store's work: what has been measured


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment.

    Attributes:
        record: its record.
        files: that were written: the record, the table twice, the figure if there is one.
    """

    record: Reproduction
    files: tuple[Path, ...]


def reproduce(
    names: str | Sequence[str],
    scale: str = "smoke",
    *,
    source: str | None = None,
    texts: Mapping[str, str] | None = None,
    seeds: Sequence[int] | None = None,
    positions: Sequence[str] | None = None,
    store: str | Path = STORE,
    adopt: Sequence[str | Path] = (),
    out: str | Path = OUT,
    extend: bool = False,
    settings: Sequence[str] = (),
    questions: str | Path | None = None,
    overview: Overview | None = None,
) -> list[Outcome] | None:
    """Carry out experiments; None if Ctrl-C has ended a training.

    Args:
        names: of experiments; "all" for every one that can be run at this scale.
        scale: smoke, laptop or paper.
        source: the text, as `selattn.data.documents` takes it; None for that of the scale.
        texts: files for wikitext and lm1b, where these are not to come from the hub.
        seeds: of the trainings; None for those of the scale.
        positions: "rotary", "learned" or both, of tables of losses at the laptop scale; None for both.
        store: the folder of trained models.
        adopt: folders with finished runs of `selattn train`, which are taken into the store first.
        settings: `field=value` for every training, such as `machine.precision=bf16`.
        out: where records, tables and figures go, in a folder for each scale.
        extend: take the losses of trainings that records in that folder tell of, and train the others only.
        questions: a folder with the questions of the downstream tasks; None for the hub, and made-up ones for smoke.
        overview: is shown how trainings proceed.
    """
    size, overview = find_scale(scale, source, texts, positions), overview or Overview()
    chosen = choose(names, size)
    check_positions(chosen, size, positions)
    check_extend(chosen, extend)
    wanted = tuple(size.seeds if seeds is None else seeds)
    check_settings(settings, chosen, size)
    size = with_reading(size, settings)
    kept, asked = Store(store), None if questions is None else Path(questions)

    def waiting() -> None:
        overview.say(f"another process measures with the models of {store}: waiting for it (not with another --store)")

    for experiment in chosen:
        check_output(Path(out) / size.name / f"{experiment.name}.json")
    for folder in adopt:
        for run, what in kept.adopt(folder).items():
            overview.say(f"{run}: {what}")
    try:
        records = Records(Path(out) / size.name) if extend else None
        _train(all_needs(chosen, size, wanted, settings, records), kept, overview)
        with contextlib.closing(Team()) as team, contextlib.ExitStack() as stack:
            found, memory = [], None
            for experiment in chosen:
                if memory is None and not experiment.losses_only:  # a table of losses measures nothing
                    memory = Memory(stack.enter_context(open_parts(kept.work / MEASURED, team, waiting)))
                overview.say(f"measuring: {experiment.name}")
                needs = experiment.needs(size, wanted)
                known = memory or Memory(Parts(None, team))
                lab = Lab(size, wanted, kept, needs, known, team, overview, asked, settings, records)
                record = _measured(experiment, lab)
                found.append(Outcome(record, write(experiment, record, Path(out)) if team.leads else ()))
            return found
    except InterruptedTraining:
        return None
    finally:
        overview.end()


def choose(names: str | Sequence[str], scale: Scale) -> list[Experiment]:
    """The experiments that are named; one that cannot be run at a scale is refused, but left out of "all"."""
    listed = [names] if isinstance(names, str) else list(names)
    if listed == ["all"]:
        return [each for each in EXPERIMENTS.values() if scale.name in each.scales]
    chosen = [find_experiment(name) for name in dict.fromkeys(listed)]
    for each in chosen:
        if scale.name not in each.scales:
            raise SelattnError(f"{each.name} cannot be run at the {scale.name} scale: choose {', '.join(each.scales)}")
    if not chosen:
        raise SelattnError("no experiment is named; see 'python -m lab list'")
    return chosen


def check_positions(experiments: Sequence[Experiment], scale: Scale, positions: Sequence[str] | None) -> None:
    """Raise if positions are chosen for an experiment that does not try several."""
    usual = find_scale(scale.name).tried  # which every record has in its settings, and `again` gives
    for each in experiments if positions is not None and scale.tried != usual else ():
        tried = [each.needs(replace(scale, tried=(name,)), (0,)) for name in ("rotary", "learned")]
        if {need.key for need in tried[0].values()} == {need.key for need in tried[1].values()}:
            raise SelattnError(f"--positions would change nothing: {each.name} does not try several")


def check_extend(experiments: Sequence[Experiment], extend: bool) -> None:
    """Raise if losses of records are to be taken where the models themselves are measured."""
    for each in experiments if extend else ():
        if not each.losses_only:
            raise SelattnError(f"--extend is for tables of losses: {each.name} measures the trained models themselves")


def needs_of(
    experiment: Experiment, scale: Scale, seeds: Sequence[int], settings: Sequence[str] = ()
) -> dict[str, Need]:
    """The models that an experiment needs, with `field=value` set in every training."""
    return {name: need.changed(settings) for name, need in experiment.needs(scale, seeds).items()}


def all_needs(
    experiments: Sequence[Experiment],
    scale: Scale,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    records: Records | None = None,
) -> dict[str, Need]:
    """What several experiments need, each training once under the first of its names, those they begin with first.

    What `records` tell of is left out.
    """
    found: dict[str, tuple[str, Need]] = {}
    for experiment in experiments:
        for name, need in needs_of(experiment, scale, seeds, settings).items():
            if records is not None and records.find(need) is not None:
                continue
            for title, each in _with_those_before(f"{experiment.name}, {name}", need):
                found.setdefault(each.key, (title, each))
    return dict(found.values())


def _with_those_before(name: str, need: Need) -> Iterator[tuple[str, Need]]:
    if need.after is not None:
        yield from _with_those_before(f"{name}, before", need.after)
    yield name, need


def _train(needs: dict[str, Need], store: Store, overview: Overview) -> None:
    missing = {name: need for name, need in needs.items() if store.find(need) is None}
    overview.begin(missing)
    for name, need in missing.items():
        if store.train(need, overview.display(name, need)) is None:
            raise InterruptedTraining
    overview.end()


def _measured(experiment: Experiment, lab: Lab) -> Reproduction:
    for name in lab.needs:
        lab.known(name)  # for the record, also those that the measurement reads another way
    found = experiment.evaluate(lab)
    record = Reproduction(
        experiment=experiment.name,
        paper=experiment.paper,
        sentence=experiment.sentence,
        scale=lab.scale.name,
        data=_read(lab),
        seeds=lab.seeds,
        cells=found.cells,
        claims=found.claims,
        notes=found.notes,
        settings=lab.settings,
        models=tuple(each.used(name) for name, each in lab.used.items()),
        details=found.details,
    )
    return experiment.concluded(record)


def _read(lab: Lab) -> str:
    """What the models of an experiment have read."""
    data = [used.need.run.data for used in lab.used.values()]
    texts = [each.source for each in data if not isinstance(each, Task)]
    if not texts:
        return TASK if data else NOTHING
    return lab.scale.about if set(texts) == {lab.scale.data.source} else ", ".join(dict.fromkeys(texts))


def write(experiment: Experiment, record: Reproduction, out: Path) -> tuple[Path, ...]:
    """The record, its table in Markdown and LaTeX, and its figure; the figure is drawn from the record alone."""
    path = out / record.scale / f"{experiment.name}.json"
    write_record(path, record, list(record.seeds))
    files = [path]
    if record.cells:
        table = table_of(record)
        for suffix, text in ((".md", table.markdown()), (".tex", table.latex())):
            write_text(path.with_suffix(suffix), text)
            files.append(path.with_suffix(suffix))
    if experiment.figure is not None:
        drawn = experiment.figure(read_body(path, Reproduction))
        figures = drawn if isinstance(drawn, dict) else {"": drawn}
        for name, figure in figures.items():
            added = f"-{name.replace(' ', '-')}" if name else ""
            files.append(write_figure(figure, path.with_name(f"{path.stem}{added}.png")))
    return tuple(files)
