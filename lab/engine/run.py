"""Train what is missing, measure, and write: `reproduce("efficiency", scale="laptop", source="my.txt")`; and `again`.

It can be interrupted at any time, and the same call resumes: trainings from their checkpoints, searches from their last
iteration, and what has been measured is not measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.engine.experiment import Experiment, Need, field_of, varied
from lab.engine.lab import InterruptedTraining, Lab, Memory
from lab.engine.progress import Overview
from lab.engine.records import Reproduction, joined, same_settings
from lab.engine.store import Store
from lab.engine.tables import table_of
from lab.experiments import EXPERIMENTS, find_experiment
from lab.scales import Scale, find_scale
from lab.tasks import Task
from selattn.cli.settings import override
from selattn.data import Reading
from selattn.errors import SelattnError, UnknownSourceError
from selattn.training.config import RunConfig, TextData
from selattn.utils.distributed import Team
from selattn.utils.files import write_text
from selattn.utils.journal import Parts, open_parts
from selattn.utils.records import (
    Provenance,
    check_output,
    machine,
    portable_fields,
    provenance,
    read_body,
    revision,
    versions,
    write_record,
)
from selattn.utils.typed import to_json
from selattn.views.plot.style import write_figure

STORE, OUT = Path("runs/reproduce"), Path("results/reproduce")
NOTHING, TASK = "nothing is trained", "sequences of the task"  # where a record says what its models read
GIVE_A_TEXT = "name a text of yours with --source TEXT; docs/data.md tells how to make one like enwik8-clean"
MEASURED = "measured"  # in the store's work: what has been measured
_ELSEWHERE = {"seed": "--seeds", "data.source": "--source", "data.context": "the experiments"}
_READING = [f"data.{each.name}" for each in dataclasses.fields(Reading)]


@dataclass(frozen=True)
class Reproduced:
    """An experiment that was carried out.

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
    store: str | Path | Store = STORE,
    out: str | Path = OUT,
    settings: Sequence[str] = (),
    questions: str | Path | None = None,
    overview: Overview | None = None,
    extend: bool = False,
) -> list[Reproduced] | None:
    """Carry out experiments; None if Ctrl-C has ended a training.

    Args:
        names: of experiments; "all" for every one that can be run at this scale.
        scale: smoke, laptop or paper.
        source: the text, as `selattn.data.documents` takes it; None for that of the scale.
        texts: files for wikitext and lm1b, where these are not to come from the hub.
        seeds: of the trainings; None for those of the scale.
        positions: "rotary", "learned" or both, of tables of losses at the laptop scale; None for both.
        store: of trained models, or its folder.
        settings: `field=value` for every training, such as `machine.precision=bf16`.
        out: where records, tables and figures go, in a folder for each scale.
        questions: a folder with the questions of the downstream tasks; None for the hub, and made-up ones for smoke.
        overview: is shown how trainings proceed.
        extend: whether experiments that are measured seed by seed keep the seeds that their records in `out` have.
    """
    size, overview = find_scale(scale, source, texts, positions), overview or Overview()
    chosen = choose(names, size)
    check_texts(chosen, size, source, texts or {})
    wanted = tuple(size.seeds if seeds is None else seeds)
    check_settings(settings, chosen, size)
    size = with_reading(size, settings)
    kept = store if isinstance(store, Store) else Store(store)
    asked = None if questions is None else Path(questions)

    def waiting() -> None:
        overview.say(
            f"another process measures with the models of {kept.folder}: waiting for it (not with another --store)"
        )

    for experiment in chosen:
        check_output(Path(out) / size.name / f"{experiment.name}.json")
    known = known_seeds(chosen, size, Path(out), settings) if extend else {}
    todo = {each.name: lacking(wanted, known.get(each.name)) for each in chosen}
    try:
        _train(all_needs(chosen, size, todo, settings), kept, overview)
        with contextlib.closing(Team()) as team, contextlib.ExitStack() as stack:
            done, memory = [], None
            for experiment in chosen:
                if memory is None and not experiment.losses_only:  # a table of losses measures nothing
                    memory = Memory(stack.enter_context(open_parts(kept.work / MEASURED, team, waiting)))
                overview.say(f"measuring: {experiment.name}")
                measured = memory or Memory(Parts(None, team))
                record = known.get(experiment.name)
                seeds = todo[experiment.name]
                for part in [(seed,) for seed in seeds] if experiment.by_seed else [seeds]:
                    needs = experiment.needs(size, part)
                    lab = Lab(size, part, kept, needs, measured, team, overview, asked, settings)
                    found = _measured(experiment, lab)
                    record = found if record is None else joined(record, found)
                assert record is not None
                record = experiment.concluded(record)
                done.append(Reproduced(record, write(experiment, record, Path(out)) if team.leads else ()))
            return done
    except InterruptedTraining:
        return None
    except UnknownSourceError as error:
        if size.data.source not in str(error):
            raise
        raise SelattnError(f"{error}; {GIVE_A_TEXT}") from None
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


def sources_of(experiments: Sequence[Experiment], scale: Scale) -> set[str]:
    """The texts that their models read."""
    named = [pair for each in experiments for pair in each.needs(scale, (0,)).items()]
    data = [need.run.data for pair in named for _, need in _with_those_before(*pair)]
    read = {scale.on(name).data.source for each in experiments for name in each.reads}
    return {each.source for each in data if not isinstance(each, Task)} | read


def check_texts(experiments: Sequence[Experiment], scale: Scale, source: str | None, texts: Mapping[str, str]) -> None:
    """Raise for a text that none of the experiments reads."""
    given = {f"--text {name}": text for name, text in texts.items()} | ({} if source is None else {"--source": source})
    for option, text in given.items():
        if text not in sources_of(experiments, scale):
            names = ", ".join(each.name for each in experiments)
            raise SelattnError(f"{option} would change nothing: {names} reads no such text; leave it out")


def check_settings(settings: Sequence[str], experiments: Sequence[Experiment], scale: Scale) -> None:
    """Raise for settings that have an option of their own, or that an experiment chooses."""
    fields = [field_of(setting) for setting in settings]
    for name, instead in _ELSEWHERE.items():
        if name in fields:
            raise SelattnError(f"{name}=... is set by {instead}: leave it out of the settings")
    whole = dataclasses.replace(scale, tried=find_scale(scale.name).tried)  # rows are named after their positions
    chosen = {each.name: varied(each.needs(whole, (0,)).values()) for each in experiments} if fields else {}
    for name in fields:
        if those := [experiment for experiment, fields in chosen.items() if name in fields]:
            raise SelattnError(
                f"{name}=... cannot be set for {', '.join(those)}, whose own trainings differ in it: leave one out"
            )


def with_reading(scale: Scale, settings: Sequence[str]) -> Scale:
    """The scale whose text is read as these settings say: what is measured on must be held out from the trainings."""
    reading = [setting for setting in settings if field_of(setting) in _READING]
    data = override(RunConfig(scale.name, scale.data), reading).data
    assert isinstance(data, TextData)
    return dataclasses.replace(scale, data=data)


def needs_of(
    experiment: Experiment, scale: Scale, seeds: Sequence[int], settings: Sequence[str] = ()
) -> dict[str, Need]:
    """The models that an experiment needs, with `field=value` set in every training."""
    return {name: need.changed(settings) for name, need in experiment.needs(scale, seeds).items()}


def all_needs(
    experiments: Sequence[Experiment],
    scale: Scale,
    seeds: Mapping[str, Sequence[int]],
    settings: Sequence[str] = (),
) -> dict[str, Need]:
    """What several experiments need for their seeds, each training once, under its first name; earlier ones first."""
    unique: dict[str, tuple[str, Need]] = {}
    for experiment in experiments:
        for name, need in needs_of(experiment, scale, seeds[experiment.name], settings).items():
            for title, each in _with_those_before(f"{experiment.name}, {name}", need):
                unique.setdefault(each.key, (title, each))
    return dict(unique.values())


def known_seeds(
    experiments: Sequence[Experiment], scale: Scale, out: Path, settings: Sequence[str]
) -> dict[str, Reproduction]:
    """The records that can grow by seeds; raises for one that was made with another text or other settings."""
    now = {"source": scale.data.source, "set": list(settings), "positions": list(scale.tried)}
    records = {}
    for experiment in experiments:
        path = out / scale.name / f"{experiment.name}.json"
        if experiment.by_seed and path.is_file():
            records[experiment.name] = record = read_body(path, Reproduction)
            before, given = same_settings(record.settings), same_settings(now)
            if differ := [name for name in given if before.get(name) != given[name]]:
                raise SelattnError(f"{path} was made with other settings ({', '.join(differ)}): give another --out")
    return records


def lacking(seeds: Sequence[int], record: Reproduction | None) -> tuple[int, ...]:
    """The seeds that are not in a record."""
    return tuple(seed for seed in seeds if record is None or seed not in record.seeds)


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
        lab.trained(name)  # for the record, also those that the measurement reads another way
    measured = experiment.evaluate(lab)
    made = {"measured": [portable_fields(to_json(provenance(lab.seeds[0])))]} if experiment.by_seed else {}
    return Reproduction(
        experiment=experiment.name,
        paper=experiment.paper,
        sentence=experiment.sentence,
        scale=lab.scale.name,
        data=_read(experiment, lab),
        seeds=lab.seeds,
        cells=measured.cells,
        claims=measured.claims,
        notes=measured.notes,
        settings=lab.settings,
        models=tuple(each.used(name) for name, each in lab.used.items()),
        details={**measured.details, **made},
    )


def _read(experiment: Experiment, lab: Lab) -> str:
    """The texts that the models of an experiment have read."""
    data = [used.need.run.data for used in lab.used.values()]
    texts = [each.source for each in data if not isinstance(each, Task)]
    texts += [lab.scale.on(name).data.source for name in experiment.reads]
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
    record: str | Path,
    *,
    source: str | None = None,
    store: str | Path | None = None,
    questions: str | Path | None = None,
    overview: Overview | None = None,
) -> Compared | None:
    """Carry out the experiment of a record once more; None if Ctrl-C has ended a training.

    Args:
        record: its file, or the name of an experiment that has one in `results/reproduce`.
        source: the text, where it lies elsewhere than the record says.
        store: of trained models, which are not trained again then; None trains everything again, and leaves nothing.
        questions: a folder with the questions of the downstream tasks, if it had one.
        overview: is shown how trainings proceed.
    """
    path = _file_of(record)
    before, made = read_body(path, Reproduction), read_body(path, Provenance)
    if before.earlier is not None:
        raise SelattnError(f"{path} was taken from {before.earlier}: run that record's command")
    known, texts = before.settings["source"], before.settings.get("texts") or {}  # also where nothing reads them
    if before.scale == "smoke":
        known = None
    read = sources_of([find_experiment(before.experiment)], find_scale(before.scale, source or known, texts))
    with tempfile.TemporaryDirectory() as folder:
        now = reproduce(
            before.experiment,
            before.scale,
            source=source or (known if known in read else None),
            texts={name: text for name, text in texts.items() if text in read},
            seeds=before.seeds,
            positions=before.settings.get("positions"),
            settings=before.settings.get("set", ()),
            store=Path(folder) / "store" if store is None else store,
            out=Path(folder) / "out",
            questions=questions,
            overview=overview,
        )
        if now is None:
            return None
    return compare(find_experiment(before.experiment).concluded(before), now[0].record, made)


def _file_of(record: str | Path) -> Path:
    """A file as it is given; of an experiment the record of the largest scale."""
    file = Path(record)
    if file.exists() or file.suffix:
        return file
    name = find_experiment(str(record)).name
    files = [each for scale in ("paper", "laptop", "smoke") if (each := OUT / scale / f"{name}.json").is_file()]
    if not files:
        raise SelattnError(f"there is no record of {name} in {OUT}: 'python -m lab {name}' makes one")
    return files[0]


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
    numbers: dict[str, float | None] = {}
    for cell in record.cells:
        for of, value in zip(record.values, cell.values, strict=True):
            numbers[f"{cell.row}, {cell.column}, seed {of}"] = value
    for claim in record.claims:
        numbers |= {f"{claim.text} ({number})": value for number, value in enumerate(claim.values)}
    return numbers


def _around(made: Provenance) -> tuple[str, ...]:
    """Differences of machine, versions and commit, which may excuse others."""
    said = []
    here = {**versions(), **machine(), "commit": revision()["commit"]}
    there = {**made.versions, **made.machine, "commit": made.commit}
    for name in there:
        if name in here and there[name] != here[name]:
            said.append(f"{name} was {there[name]} and is {here[name]}")
    return tuple(said)
