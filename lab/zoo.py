"""`python -m lab zoo [NAME ...]`: train the models of the zoo that are missing, and export them in bf16.

With --cards it writes the models' cards instead (lab/cards.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from lab import cards
from lab.runs import ZOO, find_run
from selattn.cli import _options
from selattn.cli._options import Parser
from selattn.cli.main import INTERRUPTED
from selattn.cli.settings import override
from selattn.data.task import SAMPLE
from selattn.errors import SelattnError, advice
from selattn.models import SelectiveForCausalLM
from selattn.models.zoo import zoo_folder, zoo_models
from selattn.training import folder
from selattn.training.config import TextData
from selattn.training.launch import train
from selattn.utils.files import make_folder
from selattn.utils.progress import Progress, Shown

MADE = "runs/zoo"
LIMIT = 40_000_000  # bytes that the whole zoo may take


def main(argv: Sequence[str]) -> int:
    """Train and export; the same command resumes what was interrupted."""
    parser = Parser(prog="python -m lab zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    parser.add_argument("--source", type=_options.name, metavar="TEXT", help="what the language models read")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of every run")
    parser.add_argument(
        "--runs", type=_options.path, default=Path(MADE), metavar="FOLDER", help=f"of the runs (default: {MADE})"
    )
    parser.add_argument("--cards", action="store_true", help="train nothing: write the cards that are stale")
    args = parser.parse_args(argv)
    for name in args.names:
        if name not in names():
            raise SelattnError(f"unknown model {name!r}; {advice(name, names())}")
    wanted = args.names or names()
    if args.cards:
        for path in cards.write_cards({name: folder for name, folder in zoo_models().items() if name in wanted}):
            print(path)
        return 0
    if args.source and not any(map(reads_text, wanted)):
        raise SelattnError(f"--source would change nothing: {' and '.join(wanted)} read no text")
    if make_zoo(wanted, args.source, args.set, args.runs, Shown(keep=True)):
        return 0
    print("stopped with a checkpoint; the same command resumes")
    return INTERRUPTED


def names() -> list[str]:
    """The models that the zoo is to have."""
    return [run.removeprefix("zoo-") for run in ZOO]


def reads_text(name: str) -> bool:
    """Whether a model of the zoo is a language model, which has a source."""
    return isinstance(find_run(f"zoo-{name}").data, TextData)


def make_zoo(
    wanted: Sequence[str], source: str | None, settings: Sequence[str], runs: Path, progress: Progress
) -> bool:
    """Train and export the models that the zoo lacks; False if it was interrupted.

    Args:
        wanted: their names.
        source: the text, for those that read text; None is what their runs say.
        settings: `field=value` for every run.
        runs: where the runs' folders go. A run that is there is resumed.
        progress: is told how the trainings proceed.
    """
    for name in wanted:
        if name in zoo_models():
            continue
        run = override(find_run(f"zoo-{name}"), settings)
        if source is not None and isinstance(run.data, TextData):
            run = override(run, [f"data.source={source}"])
        done = train(run, runs / name, resume=True, progress=progress)
        if done.interrupted:
            return False
        zoo = zoo_folder()
        assert zoo is not None  # the lab is in a checkout
        export(done.folder / folder.MODEL, zoo / name)
    return True


def export(model: Path, to: Path) -> None:
    """A trained model with its weights in bf16, its record and its tokenizer; whole or not at all."""
    before = sum(size(path) for path in zoo_models().values())

    def fill(part: Path) -> None:
        loaded = SelectiveForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        loaded.config.use_cache = True  # models trained by earlier versions have it off
        loaded.save_pretrained(part)
        for file in model.iterdir():
            if file.name in (folder.RECORD, SAMPLE) or file.name.startswith("tokenizer"):
                shutil.copyfile(file, part / file.name)
        if before + size(part) > LIMIT:
            raise SelattnError(
                f"the zoo would have {(before + size(part)) / 1e6:.1f} MB with {to.name}, and may have "
                f"{LIMIT / 1e6:.0f}: remove a model, or make this one smaller"
            )

    make_folder(to, fill)


def size(path: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(file.stat().st_size for file in path.iterdir())
