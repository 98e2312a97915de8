"""The report of a training run, from its record and its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selattn.utils.records import Provenance, as_body
from selattn.views.html.blocks import Headline, Paragraph, Picture, Table
from selattn.views.html.document import Report, Section
from selattn.views.html.provenance import how_it_was_made
from selattn.views.plot.training import kept_by_layer, losses_of_log

Record = Mapping[str, Any]


def training_report(record: Record, log: Sequence[Record], folder: str) -> Report:
    """What a run came to, how it got there, and what each layer keeps.

    Args:
        record: `training_record.json`.
        log: the records of `log.jsonl`.
        folder: of the run, as the user named it.
    """
    run, evaluation = record["run"], record["evaluation"]
    made, settings = as_body(record, Provenance), {**record["run"], "parameters": record["parameters"]}
    return Report(
        title=f"{run['name']}: a training run",
        lead=f"{record['steps']:,} steps, {record['tokens']:,} tokens, {record['parameters']:,} parameters.",
        blocks=[Headline(_headline(evaluation))],
        sections=[
            Section("How good it is", [_evaluation(evaluation)]),
            Section("How it got there", [_curve(log)]),
            *_forgotten(evaluation, log),
            how_it_was_made(made, settings, f"The model is in {folder}/model."),
        ],
    )


def _headline(evaluation: Record) -> list[tuple[str, str]]:
    found = []
    for name, values in evaluation.items():
        shown = name.replace("_", " ")
        if "accuracy" in values:
            found.append((f"{values['accuracy']:.1%}", f"of the answers are right ({shown})"))
        else:
            found.append((f"{values['loss']:.3f}", f"nats per token ({shown})"))
    kept = evaluation.get("validation", {}).get("kept")
    known = [share for share in kept or [] if share is not None]
    if known:
        found.append((f"{sum(known) / len(known):.0%}", "of a sequence is still needed, a mean over the layers"))
    return found


def _evaluation(evaluation: Record) -> Table:
    accuracy = any("accuracy" in values for values in evaluation.values())
    head = ["", "loss, nats per token", *(["right answers"] if accuracy else [])]
    rows = [
        [name.replace("_", " "), f"{values['loss']:.4f}", *([f"{values['accuracy']:.1%}"] if accuracy else [])]
        for name, values in evaluation.items()
    ]
    return Table(head, rows, "The last evaluation")


def _curve(log: Sequence[Record]) -> Picture:
    return Picture(
        losses_of_log(log),
        "The loss over the steps: of the training batches (thin) and of what is held out (marked).",
        "Curves of the loss over the training steps.",
    )


def _forgotten(evaluation: Record, log: Sequence[Record]) -> list[Section]:
    """What each layer keeps; nothing for a model that does not select."""
    kept = evaluation.get("validation", {}).get("kept")
    if not kept or all(share is None for share in kept):
        return []
    words = (
        "A layer keeps what later tokens may still need: the most, at any time, of a sequence that is not masked. "
        "A model with standard attention keeps all of it."
    )
    caption = "The share that each layer keeps, over the training steps."
    return [Section("What it forgets", [Paragraph(words), Picture(kept_by_layer(log), caption, caption)])]
