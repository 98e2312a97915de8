"""From what a user gives (a text, a file, `paper`, `sample`) to token ids, and from ids to tokens as people write."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from selattn.data.synthetic import TASKS, Task, make_task
from selattn.errors import SelattnError
from selattn.models.loading import TRAINING, Loaded
from selattn.models.tokenizer import Tokenizer
from selattn.report.examples import PAPER
from selattn.utils.records import read_record

SAMPLE = "sample"  # instead of a text: a sample of the task that a model was trained on


class Words(NamedTuple):
    """A text as a model reads it."""

    ids: list[int]
    tokens: list[str]  # put together they are the text, but for special tokens such as <s>; "" goes on a character


def given_text(name: str) -> str:
    """What `--text` names: `paper`, or `sample`, or else a file."""
    if name == "paper":
        return PAPER
    if name == SAMPLE:
        return SAMPLE
    try:
        return Path(name).expanduser().read_text("utf-8")
    except OSError as error:
        raise SelattnError(f"cannot read {name}: {error.strerror}; --text takes a file, 'paper' or 'sample'") from None
    except UnicodeDecodeError:
        raise SelattnError(f"{name} is not text in UTF-8") from None


class Reader:
    """Reads text for a model: with its tokenizer, or in the tokens of the task that it was trained on."""

    def __init__(self, loaded: Loaded) -> None:
        self.tokenizer: Tokenizer | None = None
        self.task: Task | None = None
        if loaded.reads_text:
            self.tokenizer = loaded.tokenizer
        else:
            self.task = _task_of(loaded.folder)

    def read(self, text: str, seed: int = 0) -> Words:
        """The ids, the first of them <BOS>."""
        if self.task is not None:
            return self._read_task(self.task, text, seed)
        assert self.tokenizer is not None
        if text == SAMPLE:
            raise SelattnError("'sample' is for models of a synthetic task; give this one a text")
        if not text.strip():
            raise SelattnError("the text is empty: give at least one word")
        return Words(*self.tokenizer.split(text))

    def _read_task(self, task: Task, text: str, seed: int) -> Words:
        names = task.tokens
        if text == SAMPLE:
            ids = [int(i) for i in task.dataset(seed, 1)[0]["input_ids"]]
        else:
            words = text.split()
            number = {name: i for i, name in enumerate(names)}
            wrong = next((word for word in words if word not in number), None)
            if wrong is not None or not words:
                known = ", ".join((*names[:4], names[-1]))
                raise SelattnError(
                    f"this model was trained on {task.name} and has no token {wrong!r}: write its tokens ({known}) "
                    "with blanks between them, or 'sample'"
                )
            ids = [number[word] for word in words]
            if names[0].startswith("<") and ids[0] != 0:
                ids = [0, *ids]
        return Words(ids, [names[i] if place == 0 else f" {names[i]}" for place, i in enumerate(ids)])


def _task_of(folder: Path) -> Task:
    """The synthetic task that a model was trained on, by its record."""
    lacks = f"{folder} has no tokenizer"
    if not (folder / TRAINING).is_file():
        raise SelattnError(f"{lacks}: text can only be read with the tokenizer of the model")
    try:
        settings = dict(read_record(folder / TRAINING)["run"]["data"])
        name = settings.pop("kind")
    except (KeyError, TypeError, ValueError):
        raise SelattnError(f"{folder / TRAINING} does not say what the model was trained on") from None
    if name not in TASKS:
        raise SelattnError(f"{lacks}, and it was trained on {name}: text can only be read with its tokenizer")
    return make_task(name, **settings)
