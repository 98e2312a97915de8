"""From a text that a user names to token ids, and from ids to tokens as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from selattn.data.task import SAMPLE
from selattn.errors import SelattnError
from selattn.models.loading import Loaded
from selattn.views.examples import PAPER


class Words(NamedTuple):
    """A text as a model reads it."""

    ids: list[int]
    tokens: list[str]  # put together they are the text, but for special tokens such as <s>; "" continues a character


def given_text(name: str | None, loaded: Loaded) -> str:
    """The text that `--text` names: `paper`, `sample` (the one beside a model), or a file.

    Without a name it is the model's own sample, if it has one, or the paper's example.
    """
    sample = loaded.folder / SAMPLE
    if name == "sample" or (name is None and sample.is_file()):
        if not sample.is_file():
            raise SelattnError(f"{loaded.name} has no {SAMPLE}: give --text a file, or 'paper'")
        name = str(sample)
    if name in (None, "paper"):
        return PAPER
    try:
        return Path(str(name)).expanduser().read_text("utf-8")
    except OSError as error:
        raise SelattnError(f"cannot read {name}: {error.strerror}; --text takes a file, 'paper' or 'sample'") from None
    except UnicodeDecodeError:
        raise SelattnError(f"{name} is not text in UTF-8") from None


def read(loaded: Loaded, text: str) -> Words:
    """The ids of a text in the model's tokenizer, the first of them <BOS>."""
    if not isinstance(text, str):
        raise SelattnError(f"the text must be a str, not {text!r:.80}: of a file, what read_text() gives")
    if not text.strip():
        raise SelattnError("the text is empty: give at least one word")
    return Words(*loaded.tokenizer.split(text))
