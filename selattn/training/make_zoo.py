"""Make the models of the zoo: train what is not trained yet, one after another, and export it in bf16."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from selattn.errors import SelattnError
from selattn.models import SelectiveForCausalLM
from selattn.models.zoo import SHIPPED, VARIABLE, zoo_folder, zoo_models
from selattn.training import folder
from selattn.training.config import TextData
from selattn.training.display import Display
from selattn.training.launch import train
from selattn.training.overrides import override
from selattn.training.runs import find_run
from selattn.training.runs.zoo import RUNS
from selattn.utils.folders import make_folder

LIMIT = 40_000_000  # bytes that the whole zoo may take


def names() -> list[str]:
    """The models that the zoo is to have."""
    return [run.removeprefix("zoo-") for run in RUNS]


def reads_text(name: str) -> bool:
    """Whether a model of the zoo is a language model, which has a source."""
    return isinstance(find_run(f"zoo-{name}").data, TextData)


def make_zoo(
    wanted: Sequence[str], source: str | None, settings: Sequence[str], runs: Path, display: Callable[[str], Display]
) -> bool:
    """Train and export the models that the zoo lacks; False if it was interrupted.

    Args:
        wanted: their names.
        source: the text, for those that read text; None is what their runs say.
        settings: `field=value` for every run.
        runs: where the runs' folders go. A run that is there is resumed.
        display: makes what is shown of a run, from its title.
    """
    for name in wanted:
        if name in zoo_models():
            continue
        if zoo_folder() == SHIPPED:
            raise SelattnError(f"{SHIPPED} belongs to the installed package: set {VARIABLE} to a folder of your own")
        run = override(find_run(f"zoo-{name}"), settings)
        if source is not None and isinstance(run.data, TextData):
            run = override(run, [f"data.source={source}"])
        done = train(run, runs / name, resume=True, display=display(name))
        if done.interrupted:
            return False
        export(done.folder / folder.MODEL, zoo_folder() / name)
    return True


def export(model: Path, to: Path) -> None:
    """A trained model with its weights in bf16, its record and its tokenizer; whole or not at all."""
    before = sum(size(path) for path in zoo_models().values())

    def fill(part: Path) -> None:
        loaded = SelectiveForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        loaded.config.use_cache = True  # models trained by earlier versions have it off
        loaded.save_pretrained(part)
        for file in model.iterdir():
            if file.name == folder.RECORD or file.name.startswith("tokenizer"):
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
