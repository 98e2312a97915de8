"""The tables of `selattn info MODEL_DIR`."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

UNSHOWN = ("versions", "machine")  # in the tables; what a record says of these is in its file, and in `--json`
LONGEST = 400  # characters of one value in a table


def collect(name: str) -> dict[str, dict[str, Any]]:
    """Groups of facts: `model`, `attention` by layer, `parameters` by part, `settings`, `training record` if any."""
    import torch

    from selattn.models.loading import TRAINING, load
    from selattn.models.summary import parameters_by_part, settings
    from selattn.utils.inputs import read_json

    found = load(name)
    folder, counts = found.folder, parameters_by_part(found.skeleton)
    dtype = found.config.dtype if isinstance(found.config.dtype, torch.dtype) else torch.float32
    files = [file for file in found.format.files(folder) if file.suffix != ".json"]
    if files:
        found.check()
    if found.reads_text:
        _ = found.tokenizer  # which says so if it does not fit
    facts: dict[str, dict[str, Any]] = {
        "model": {
            "folder": str(folder),
            "parameters": sum(counts.values()),
            "bytes": sum(counts.values()) * dtype.itemsize,
            "dtype": str(dtype).removeprefix("torch."),
            "bytes on disk": sum(file.stat().st_size for file in files) if files else None,
        },
        "attention": {str(layer): kind.text for layer, kind in enumerate(found.description.kinds)},
        "parameters": {part: count for part, count in counts.items() if count},
        "settings": settings(found.config),
    }
    if (folder / TRAINING).exists():
        facts["training record"] = read_json(folder / TRAINING)
    return facts


def draw(found: dict[str, dict[str, Any]], console: Console) -> None:
    """The same as tables."""
    from rich.table import Table
    from rich.text import Text

    total = found["model"]["parameters"]
    for group, facts in found.items():
        table = Table(title=group, title_justify="left", show_header=False)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold", justify="right" if group == "parameters" else "left")
        rows: list[tuple[str, ...]]
        if group == "model":
            rows = _size_rows(facts)
        elif group == "attention":
            rows = _runs(facts)
        elif group == "parameters":
            table.add_column(justify="right")
            rows = [(part, f"{count:,}", f"{count / total:.1%}") for part, count in facts.items()]
        else:
            rows = [(name, _shown(value)) for name, value in facts.items() if name not in UNSHOWN]
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)


def _size_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    on_disk = facts["bytes on disk"]
    return [
        ("folder", facts["folder"]),
        ("parameters", f"{facts['parameters']:,}"),
        ("size", f"{_size(facts['bytes'])} in {facts['dtype']}"),
        ("on disk", "no weights here" if on_disk is None else _size(on_disk)),
    ]


def _runs(kinds: dict[str, str]) -> list[tuple[str, ...]]:
    """Layers of one kind that follow each other make one row."""
    rows: list[tuple[str, ...]] = []
    for kind, run in itertools.groupby(kinds.items(), lambda item: item[1]):
        layers = [layer for layer, _ in run]
        rows.append((f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}", kind))
    return rows


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"
