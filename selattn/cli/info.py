"""`selattn info`: versions, threads, and which attention backends work here; or what a model consists of."""

from __future__ import annotations

import argparse
import itertools
import json
from typing import TYPE_CHECKING, Any

from selattn.cli._options import add_command

if TYPE_CHECKING:
    from selattn.utils.tables import Table

UNSHOWN = ("versions", "machine")  # of a training record, in tables; they are in its file, and in `--json`
LONGEST = 400  # characters of one value in a table


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn info` and its options to the command line."""
    parser = add_command(subparsers, "info", "versions and backends, or what a model is", __doc__)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="shows its size, layers, parts and training record")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Print the facts about the machine, or about the model."""
    found = collect() if args.model is None else collect_model(args.model)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        from rich.console import Console

        console = Console(highlight=False)
        for group, facts in found.items():
            console.print((table if args.model is None else model_table)(group, facts).rich())
    return 0


def collect() -> dict[str, dict[str, str | int | bool | None]]:
    """Groups of facts; a backend or library that is available is None, another one the reason why not."""
    from selattn.ops.backends import dispatch
    from selattn.ops.backends.triton import selfcheck
    from selattn.utils import native, records

    checked = selfcheck.states()  # empty where there is no GPU
    return {
        "versions": {**records.versions()},
        "machine": {**records.machine()},
        "backends": {**dispatch.backends()},
        **({"self-check of the GPU kernels": {**checked}} if checked else {}),
        "compiled library": {"attention, decoding": native.unavailable(), "instruction set": native.target() or "none"},
    }


def table(group: str, facts: dict[str, Any]) -> Table:
    """One group of facts about the machine as a table."""
    from selattn.utils import native
    from selattn.utils.tables import Table

    rows, styles = [], {}
    for number, (name, value) in enumerate(facts.items()):
        if value is None:
            value, styles[number, 1] = "available", "green"
        elif group == "backends" or value == native.unavailable():
            styles[number, 1] = "yellow"
        elif isinstance(value, bool):
            value = _shown(value)
        elif value == "not installed":
            styles[number, 1] = "dim"
        rows.append((name, str(value)))
    return Table((), rows, group, left=[1], styles=styles)


def collect_model(name: str) -> dict[str, dict[str, Any]]:
    """Groups of facts: `model`, `attention` by layer, `parameters` by part, `settings`, `training record` if any."""
    import torch

    from selattn.models.loading import TRAINING, load
    from selattn.models.summary import parameters_by_part, settings
    from selattn.utils.files import read_json

    found = load(name)
    folder, counts = found.folder, parameters_by_part(found.skeleton)
    dtype = found.config.dtype if isinstance(found.config.dtype, torch.dtype) else torch.float32
    files = [file for file in found.format.files(folder) if file.suffix != ".json"]
    if files:
        found.check()
    if found.reads_text:
        _ = found.tokenizer  # raises if it does not fit
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


def model_table(group: str, facts: dict[str, Any]) -> Table:
    """One group of facts about a model as a table."""
    from selattn.utils.tables import Table, byte_size

    rows: list[tuple[str, ...]]
    if group == "model":
        on_disk = facts["bytes on disk"]
        rows = [
            ("folder", facts["folder"]),
            ("parameters", f"{facts['parameters']:,}"),
            ("size", f"{byte_size(facts['bytes'])} in {facts['dtype']}"),
            ("on disk", "no weights here" if on_disk is None else byte_size(on_disk)),
        ]
    elif group == "attention":
        rows = _runs(facts)
    elif group == "parameters":
        total = sum(facts.values())
        rows = [(part, f"{count:,}", f"{count / total:.1%}") for part, count in facts.items()]
    else:
        rows = [(name, _shown(value)) for name, value in facts.items() if name not in UNSHOWN]
    return Table((), rows, group, left=[] if group == "parameters" else [1])


def _runs(kinds: dict[str, str]) -> list[tuple[str, ...]]:
    """Layers of one kind that follow each other make one row."""
    rows: list[tuple[str, ...]] = []
    for kind, run in itertools.groupby(kinds.items(), lambda item: item[1]):
        layers = [layer for layer, _ in run]
        rows.append((f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}", kind))
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"
