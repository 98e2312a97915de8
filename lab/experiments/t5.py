"""Table 7: T5 with selective attention in the decoder, pre-trained with span corruption."""

from __future__ import annotations

import dataclasses

from lab.engine.grids import Less, Variant, loss_table
from lab.runs import find_run
from lab.runs.scales import Scale
from lab.t5 import SpanData
from selattn.training.config import Batching, Checkpoints, Evaluation, RunConfig, Schedule

_PAPER = {"small": (1.962, 1.952), "base": (1.693, 1.691), "large": (1.528, 1.522)}  # standard, selective
KINDS = ("standard", "selective")


def _run(scale: Scale, kind: str) -> RunConfig:
    """The tiny T5 of `selattn train`, on the text of the scale; smoke makes it smaller still."""
    run = find_run(f"t5-tiny-{kind}")
    assert isinstance(run.data, SpanData)
    data = dataclasses.replace(run.data, source=scale.data.source)
    if scale.name == "laptop":
        return dataclasses.replace(run, data=data)
    small = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    text = scale.data
    data = dataclasses.replace(data, vocabulary=text.vocabulary, limit=text.limit, validation=text.validation)
    return dataclasses.replace(
        run,
        data=dataclasses.replace(data, context=scale.context),
        model={**run.model, **small},
        schedule=Schedule(steps=scale.steps, warmup=scale.warmup, decay="linear"),
        batch=Batching(size=4),
        evaluation=Evaluation(every=scale.every, rows=scale.eval_rows, batch=8),
        checkpoints=Checkpoints(every=scale.every),
        log_every=4,
    )


def variants(scale: Scale) -> list[Variant]:
    """Both kinds of the paper's three sizes, or of one tiny one."""
    if scale.name != "paper":
        return [Variant("T5, tiny", kind, _run(scale, kind)) for kind in KINDS]
    return [
        Variant(f"T5, {size}", kind, find_run(f"c4-t5-{size}-{kind}"), value)
        for size, values in _PAPER.items()
        for kind, value in zip(KINDS, values, strict=True)
    ]


def claims(scale: Scale) -> list[Less]:
    """Some improvement at each size."""
    sizes = {name: a - b for name, (a, b) in _PAPER.items()} if scale.name == "paper" else {"tiny": None}
    return [
        Less(
            f"T5 is better with selective attention ({size}).",
            (f"T5, {size}", "selective"),
            (f"T5, {size}", "standard"),
            paper,
        )
        for size, paper in sizes.items()
    ]


EXPERIMENT = loss_table(
    name="t5",
    paper="Table 7",
    sentence="T5 with selective attention in the decoder, span corruption",
    variants=variants,
    claims=claims,
    notes=(
        "The loss is that of span corruption for each token that is not padding. The encoder and the attention to it "
        "are untouched.",
    ),
)
