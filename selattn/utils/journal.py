"""Files of JSON lines that are only ever appended to: a process that is killed loses no line that it has written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from selattn.utils.files import writing


def append_line(file: Path, value: Any, advice: str = "", durable: bool = True) -> None:
    """Add a line. It is on the disk when this returns; unless `durable`, the system has it and may take its time."""
    with writing(file, advice), file.open("a") as opened:
        opened.write(json.dumps(value) + "\n")
        opened.flush()
        if durable:
            os.fsync(opened.fileno())


def whole_lines(file: Path) -> list[bytes]:
    """The lines of a file; a last one that is not whole is none."""
    return file.read_bytes().split(b"\n")[:-1]


def drop_half_a_line(file: Path) -> None:
    """What a process that was killed has begun to write is not to stand in front of the next line."""
    os.truncate(file, file.read_bytes().rfind(b"\n") + 1)
