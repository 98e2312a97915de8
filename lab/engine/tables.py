"""A record as a table: ours with its spread over the seeds, and the paper's beside it; in Markdown and LaTeX."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lab.engine.records import Cell, Reproduction
from selattn.training.record import source_name
from selattn.utils.tables import Table

_PRECISIONS = {"bf16": "bf16", "fp16": "fp16"}  # that are worth a word
_WHOLE = 1e5  # from where on a number is a count


def table_of(record: Reproduction) -> Table:
    """The cells of a record: a column for each of theirs, and one beside it where the paper has numbers."""
    rows = list(dict.fromkeys(cell.row for cell in record.cells))
    columns = list(dict.fromkeys(cell.column for cell in record.cells))
    cells = {(cell.row, cell.column): cell for cell in record.cells}
    compared = {column for row, column in cells if cells[row, column].paper is not None}
    headings, body = [""], []
    for column in columns:
        headings += [column, "paper"] if column in compared else [column]
    for row in rows:
        texts = [row]
        for column in columns:
            cell = cells.get((row, column))
            texts.append("" if cell is None else ours(cell))
            if column in compared:
                texts.append("" if cell is None else papers(cell))
        body.append(tuple(texts))
    return Table(headings, body, f"{record.paper}: {record.sentence} ({conditions(record)})", record.notes)


def conditions(record: Reproduction) -> str:
    """At which scale, how often, and with what models its numbers were measured."""
    runs = "one run" if len(record.seeds) == 1 else f"mean of {len(record.seeds)} seeds (smallest to largest)"
    trained = record.models or record.earlier
    return f"{record.scale} scale, {runs}; {what_was_run(record)}" if trained else record.data


def what_was_run(record: Reproduction) -> str:
    """The text or the task, and what all models of a record have in common: `enwik8-clean, d=3, context 512, ...`.

    Models that begin with another count as that one, which the record has, too.
    """
    models = [model for model in record.models if not (model.run.get("start") or {}).get("model")]
    runs = [model.run for model in models]
    tokens = _common([f"{model.tokens / 1e6:.1f}".removesuffix(".0") for model in models], "{} million tokens")
    precision = _common([_PRECISIONS.get(run["machine"]["precision"]) for run in runs], "trained in {}")
    context = _common([run["data"].get("context") for run in runs], "context {}")
    kinds = {run["data"].get("kind") for run in runs}
    if kinds == {"text"}:
        layers = _common([run["model"].get("num_hidden_layers") for run in runs], "d={}")
        positions = _common([run["model"].get("positions", "learned") for run in runs], "{} positions")
        return ", ".join([_texts(runs), *layers, *context, *positions, *tokens, *precision])
    if kinds == {"spans"}:
        steps = _common([run["schedule"]["steps"] for run in runs], "{:,} steps")
        rows = _common([run["batch"]["size"] for run in runs], "of {} rows")
        return ", ".join([_texts(runs), "span corruption", *context, " ".join([*steps, *rows]), *precision])
    if runs and all("source" not in run["data"] for run in runs):
        task = {name: value for name, value in runs[0]["data"].items() if name != "kind"}
        return ", ".join(
            [
                *(f"{value:,} {name}" for name, value in task.items() if isinstance(value, int)),
                *_common([run["model"].get("num_hidden_layers") for run in runs], "d={}"),
                *_common([run["schedule"]["steps"] for run in runs], "at most {:,} steps"),
                *_common([run["batch"]["size"] for run in runs], "{} rows in a step"),
                *precision,
            ]
        )
    return source_name(record.data)


def _texts(runs: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(source_name(run["data"]["source"]) for run in runs))


def _common(values: Sequence[object], text: str) -> list[str]:
    """The value that all have in common, as a text; nothing if they differ."""
    return [text.format(values[0])] if len(set(values)) == 1 and values[0] is not None else []


def ours(cell: Cell) -> str:
    """The mean over the seeds, and the range where there is one."""
    known = [value for value in cell.values if value is not None]
    if not known:
        return "none"
    text = number(statistics.fmean(known), cell)
    low, high = number(min(known), cell), number(max(known), cell)
    missing = len(cell.values) - len(known)
    spread = "" if low == high else f" ({low} to {high})"
    return text + spread + (f", {missing} of {len(cell.values)} without" if missing else "")


def papers(cell: Cell) -> str:
    """The paper's number, with as many digits as it has there."""
    if cell.paper is None:
        return ""
    if cell.percent:
        return f"{100 * cell.paper:.4g}%"
    return f"{cell.paper:,.0f}" if cell.paper >= _WHOLE else f"{cell.paper:g}"


def seeds_of(cell: Cell, names: Sequence[str]) -> str:
    """Every seed's own number, or whatever else the values are of."""
    pairs = zip(names, cell.values, strict=True)
    return ", ".join(f"{seed}: {'none' if value is None else number(value, cell)}" for seed, value in pairs)


def number(value: float, cell: Cell) -> str:
    """With the digits that the cell asks for."""
    return f"{100 * value:.{cell.digits}f}%" if cell.percent else f"{value:,.{cell.digits}f}"
