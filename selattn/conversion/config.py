"""A conversion: a run of the trainer with a section of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selattn.errors import SelattnError
from selattn.training.config import (
    Batching,
    Checkpoints,
    Evaluation,
    Optimizer,
    RunConfig,
    Schedule,
    Shrink,
    Start,
    TextData,
    changed,
)

CONTEXT, STEPS = 512, 400  # unless the user, or a smaller model, says otherwise
RAMP, WARMUP = 0.5, 0.05  # shares of the steps


@dataclass(frozen=True)
class Conversion:
    """How a pretrained model learns to forget.

    Args:
        selects: whether anything selects; false is the control, an equally trained model without selection.
        masks: of the new selecting form; None is one for each key-value head.
        epsilon: weight of the memory term in the loss.
        tau: the clamp of M_i: with a small one M claims less than pruning then needs.
        kl: the share of the KL divergence from the teacher in the loss; the rest is the next token's.
        teacher: the model to stay near, a folder or zoo:NAME with the same vocabulary; None is the original.
        freeze_first: the number of first steps in which only the new form learns.
        lora: the rank of adapters in the place of the weights; 0 trains all weights.
        lora_alpha: what adapters add is multiplied by lora_alpha / lora.
        original: the fingerprint of the model that is converted, so that it is the same when the run is resumed.
    """

    selects: bool = True
    masks: int | None = None
    epsilon: float = 0.3
    tau: float = 8.0
    kl: float = 0.5
    teacher: str | None = None
    freeze_first: int = 0
    lora: int = 0
    lora_alpha: float = 16.0
    original: str = ""

    def __post_init__(self) -> None:
        for name, least in (("epsilon", 0.0), ("freeze_first", 0), ("lora", 0)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise SelattnError(f"conversion.{name} must be a finite number of at least {least:g}, not {value}")
        for name in ("tau", "lora_alpha"):
            if not 0 < getattr(self, name) < math.inf:
                raise SelattnError(f"conversion.{name} must be a finite number above 0, not {getattr(self, name)}")
        if not 0 <= self.kl <= 1:
            raise SelattnError(f"conversion.kl is a share, in [0, 1], not {self.kl}")
        if self.masks is not None and self.masks < 1:
            raise SelattnError(f"conversion.masks must be at least 1, not {self.masks}")
        if self.kl == 0 and self.teacher is not None:
            raise SelattnError("conversion.teacher would change nothing: conversion.kl is 0; leave it out")


@dataclass(frozen=True)
class ConversionRun(RunConfig):
    """A conversion: `start.model` is the model, and `model` stays empty, since all of it comes from there."""

    conversion: Conversion = Conversion()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model:
            name = next(iter(self.model))
            raise SelattnError(f"model.{name} would change nothing: a conversion takes its model as it is")
        if not isinstance(self.data, TextData):
            raise SelattnError("a conversion reads text")
        if self.data.tokenizer is not None:
            raise SelattnError("data.tokenizer would change nothing: text is read with the model's own")
        if self.shrink != Shrink():
            raise SelattnError("shrink would change nothing: budgets are found when the model has learned to forget")
        if self.machine.shard != "none":
            raise SelattnError("machine.shard is for decoders of selattn: a conversion takes many devices as they are")
        for name, value in (("start.ramp", self.start.ramp), ("conversion.freeze_first", self.conversion.freeze_first)):
            if value > self.schedule.steps:
                raise SelattnError(f"{name} is longer than the run: {value:,} steps of {self.schedule.steps:,}")

    def control(self) -> ConversionRun:
        """The same training without selection: fine-tuning by itself changes the loss."""
        changed = dataclasses.replace(self.conversion, selects=False, masks=None, epsilon=0.0, freeze_first=0)
        start = dataclasses.replace(self.start, ramp=0)
        return dataclasses.replace(self, name=f"{self.name}-control", conversion=changed, start=start)


def conversion_run(
    model: str,
    data: str | TextData,
    context: int,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> ConversionRun:
    """The recipe for a model, with settings that change it.

    Args:
        model: what is converted, by name.
        data: the text.
        context: the context size of the model; rows have no more than `CONTEXT` tokens unless `data` says so.
        settings: by their dotted names; the ramp and the warm-up follow the number of steps unless they are set, too.
        changes: fields of `Conversion`.
    """
    text = data if isinstance(data, TextData) else TextData(source=data, context=min(context, CONTEXT))
    begun = ConversionRun(
        "convert",
        data=text,
        start=Start(model),
        batch=Batching(size=4),
        optimizer=Optimizer(lr=5e-4),
        schedule=Schedule(steps=STEPS, warmup=0),
        evaluation=Evaluation(every=100, rows=64, batch=8),
        checkpoints=Checkpoints(every=50),
        log_every=10,
        conversion=Conversion(**changes),
    )
    run = changed(begun, settings or {})
    assert isinstance(run, ConversionRun)
    steps, given = run.schedule.steps, settings or {}
    if "schedule.warmup" not in given:
        run = dataclasses.replace(run, schedule=dataclasses.replace(run.schedule, warmup=int(WARMUP * steps)))
    if "start.ramp" not in given:
        run = dataclasses.replace(run, start=dataclasses.replace(run.start, ramp=int(RAMP * steps)))
    return run
