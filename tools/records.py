"""`python -m lab NAME` for those who keep the records: with trainings that were made elsewhere, or told of by records.

    python -m tools.records NAME ... [--adopt FOLDER] [--extend] [--positions P,P] [options of `python -m lab NAME`]

A table grows by seeds on whatever machine: with `--extend` one of losses takes these from the records in --out and
trains the others, and one that is measured seed by seed keeps the seeds of its record and measures the others.
`--positions rotary` carries out a part of the laptop's tables. `--adopt` copies
finished runs of `selattn train` into the store first. A run that is not finished is left alone, and so is one that
began with the model of another: it does not say which training that was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from rich.console import Console

from lab.__main__ import carry_out, different, experiments_parser
from lab.engine.experiment import Experiment, Need
from lab.engine.records import Reproduction, UsedModel
from lab.engine.run import choose
from lab.engine.store import DIVERGED, Store, Trained
from lab.scales import Scale, find_scale
from selattn.cli.main import guarded
from selattn.errors import SelattnError
from selattn.training import folder as run_folder
from selattn.training.folder import CONFIG, LOG, MODEL, RECORD
from selattn.training.record import Score, TrainingRecord, training_key
from selattn.utils.files import LOCK, folders_for, locked, make_folder
from selattn.utils.progress import Progress
from selattn.utils.records import Provenance, read_body
from selattn.utils.typed import from_json


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out experiments and return the exit code."""
    return guarded(_main, sys.argv[1:] if argv is None else argv)


def make_parser() -> argparse.ArgumentParser:
    """The options of experiments, and those for keeping records."""
    parser = experiments_parser()
    parser.prog = "python -m tools.records"
    parser.add_argument(
        "--positions", type=different("positions", str), metavar="P,P", help="rotary, learned (laptop: both)"
    )
    parser.add_argument("--adopt", action="append", default=[], metavar="FOLDER", help="take runs")
    parser.add_argument("--extend", action="store_true", help="keep what the records in --out have")
    return parser


def _main(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    name = args.scale
    size = find_scale(name, args.source, dict(args.text), args.positions)
    chosen = choose(["all"] if args.all else args.names, size)
    check_positions(chosen, size, args.positions)
    store = extended_store(chosen, args.store, args.out / name) if args.extend else Store(args.store)
    console = Console(stderr=True, highlight=False)
    for runs in args.adopt:
        for run, what in adopt(store, runs).items():
            console.print(f"{run}: {what}", soft_wrap=True, markup=False)
    return carry_out(args, store=store, positions=args.positions, extend=args.extend)


def check_positions(experiments: Sequence[Experiment], scale: Scale, positions: Sequence[str] | None) -> None:
    """Raise if positions are chosen for an experiment that does not try several."""
    for each in experiments if positions is not None and scale.tried != find_scale(scale.name).tried else ():
        tried = [each.needs(replace(scale, tried=(name,)), (0,)) for name in ("rotary", "learned")]
        if {need.key for need in tried[0].values()} == {need.key for need in tried[1].values()}:
            raise SelattnError(f"--positions would change nothing: {each.name} does not try several")


def extended_store(experiments: Sequence[Experiment], folder: Path, records: Path) -> Store:
    """The store for --extend: tables of losses take these from records; the other tables need the models of new seeds.

    Raises for an experiment that cannot be extended, and if both kinds are named.
    """
    for each in experiments:
        if not (each.losses_only or each.by_seed):
            raise SelattnError(f"--extend is for tables of losses: {each.name} measures the trained models themselves")
    if len({each.by_seed for each in experiments}) > 1:
        raise SelattnError(
            "--extend takes tables of losses and tables that are measured seed by seed one after another"
        )
    return Store(folder) if experiments[0].by_seed else RecordedStore(folder, records)


@dataclass(frozen=True, kw_only=True)
class RecordedTraining(Trained):
    """A training that a record tells of: its losses are known, its weights are not here; `folder` is the record.

    Attributes:
        told: what the record says of it.
    """

    told: UsedModel

    @property
    def data_checksums(self) -> dict[str, str]:
        """Of the tokens that it was trained and validated on."""
        return self.told.data_checksums

    def score(self, name: str = "validation") -> Score | None:
        """The last evaluation on one of the run's sets; None of a run that diverged."""
        return None if self.diverged is not None else from_json(Score, self.told.evaluation[name])

    def used(self, name: str) -> UsedModel:
        """For the record of another experiment: where it was trained stays as it was."""
        return replace(self.told, name=name)


class RecordedStore(Store):
    """A store that also knows the trainings of all records in a folder; of one that several tell of, the newest."""

    def __init__(self, folder: str | Path, records: str | Path) -> None:
        super().__init__(folder)
        found = [
            (model.date, file, model)
            for file in sorted(Path(records).glob("*.json"))
            for model in read_body(file, Reproduction).models
        ]
        self._models = {model.key: (file, model) for _, file, model in sorted(found, key=lambda each: each[0])}

    def find(self, need: Need) -> Trained | None:
        """The trained model, or what a record tells of it."""
        trained = super().find(need)
        if trained is not None or need.key not in self._models:
            return trained
        file, model = self._models[need.key]
        made = {each.name: getattr(model, each.name) for each in fields(Provenance) if hasattr(model, each.name)}
        return RecordedTraining(need, file, None, Provenance(command="", seed=None, **made), model.diverged, told=model)

    def train(self, need: Need, progress: Progress | None = None) -> Trained | None:
        """The trained model; one that it begins with is trained, too, for a record has no weights."""
        return Store(self.folder).train(need, progress)


def adopt(store: Store, folder: str | Path) -> dict[Path, str]:
    """Copy in the finished runs that lie in a folder, however deep; says what became of each.

    A training that was begun in the store gives way, unless it is running.
    """
    given, folder = str(folder), Path(folder).expanduser()
    if not given or not folder.is_dir():  # an empty name would be the working directory
        raise SelattnError(
            f"{given or repr(given)} is not a folder: --adopt takes one with runs of 'selattn train' in it"
        )
    # Of several processes one does it, and the others find it done.
    with folders_for(store.folder), locked(store.folder / ("adopting" + LOCK)):
        return {run: _adopt(store, run) for run in finished_runs(folder)}


def finished_runs(folder: Path) -> Iterator[Path]:
    """The folders of runs that have ended, in and below a folder."""
    for file in sorted(folder.rglob(f"{MODEL}/{RECORD}")):
        with contextlib.suppress(ValueError, OSError):  # half a file: the run is ending just now
            if "run" in json.loads(file.read_bytes()):
                yield file.parents[1]


def _adopt(store: Store, run: Path) -> str:
    try:
        record = read_body(run / MODEL / RECORD, TrainingRecord)
        where = store.place(training_key(record.run))
    except SelattnError as error:
        return f"left out: {error}"
    if record.run.get("start", {}).get("model") is not None:
        return "left out: it began with the model of another run"
    if not _cleared(where):
        return "is being trained"

    def fill(part: Path) -> None:
        shutil.copytree(run / MODEL, part / MODEL)
        for name in (CONFIG, LOG):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(run / name, part / name)

    return "adopted" if make_folder(where, fill) else "is there already"


def _cleared(where: Path) -> bool:
    """Remove a training that was begun here, for another has ended; False if a process is at it."""

    def ended() -> bool:
        return run_folder.finished(where) or (where / DIVERGED).exists()

    if not where.is_dir() or ended():
        return True
    with contextlib.closing(run_folder.lock_of(where)) as claim:
        if not claim.take_if_free():
            return False
        if not ended():  # nor meanwhile
            shutil.rmtree(where)
    return True


if __name__ == "__main__":
    sys.exit(main())
