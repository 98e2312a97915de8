"""The prompt of `selattn generate`: a text or token ids, given or on standard input."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from selattn.errors import SelattnError

if TYPE_CHECKING:
    from selattn.models.loading import Loaded


def read_prompt(loaded: Loaded, prompt: str | None, ids: str | None) -> list[int]:
    """The tokens of a prompt, or of standard input; or those that `--ids` names."""
    if ids is not None:
        vocabulary = loaded.description.vocab_size
        words = ids.replace(",", " ").split()
        # by its length first: Python refuses to read numbers of thousands of digits
        if not words or not all(word.isdecimal() and len(word) < 19 and int(word) < vocabulary for word in words):
            raise SelattnError(f"--ids must be token ids below {vocabulary}, such as '1 17 4', not {ids!r}")
        return [int(word) for word in words]
    if not loaded.reads_text:
        raise SelattnError(f"{loaded.folder} has no tokenizer: give the prompt as token ids with --ids")
    found: list[int] = loaded.tokenizer.hf(read_text(prompt)).input_ids
    if not found:
        raise SelattnError("the prompt is empty: give at least one token")
    return found


def read_text(prompt: str | None) -> str:
    """The prompt, or else standard input, which must be UTF-8 as well."""
    if prompt is not None:
        if any("\ud800" <= letter <= "\udfff" for letter in prompt):  # how Python spells bytes that are not
            raise SelattnError("--prompt is not UTF-8: convert it with iconv")
        return prompt
    if sys.stdin is None:
        raise SelattnError("there is no prompt: give --prompt, or a text on standard input")
    try:
        return sys.stdin.buffer.read().decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise SelattnError(
            f"standard input is not UTF-8: byte {error.start} is 0x{byte:02x}; convert it with iconv"
        ) from None
