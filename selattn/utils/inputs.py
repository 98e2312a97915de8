"""Reading small files of a user's: one clear line for what cannot be read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SelattnError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise SelattnError(f"{path} must hold a JSON object, not a {type(found).__name__}")
    return found


def digest(files: Iterable[Path]) -> str:
    """A checksum of what the files hold, in their order; their names do not matter."""
    found = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).digest())
    return found.hexdigest()


def first_line(error: Exception) -> str:
    """What an error of another library says, in one line."""
    if isinstance(error, KeyError):  # which says no more than the name
        return f"{error} is missing"
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]  # what was announced belongs to it
