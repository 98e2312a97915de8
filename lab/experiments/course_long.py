"""How the gap develops over twice as many training tokens, past the place where the text begins anew."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.courses import concluding, course, draw_course
from lab.engine.frame import Experiment, Found, Need
from lab.engine.lab import Lab
from lab.engine.trio import KINDS, trio
from lab.runs.scales import Scale


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The three models with rotary positions, trained twice as long."""
    return trio(scale, seeds, positions="rotary", steps=2 * scale.long_steps)


def evaluate(lab: Lab) -> Found:
    """Their losses at every evaluation, with the place marked where the second pass begins."""
    return course(lab, KINDS)


EXPERIMENT = Experiment(
    name="course-long",
    paper="open: training tokens",
    sentence="the gap over twice as many training tokens, with rotary positions",
    needs=needs,
    evaluate=evaluate,
    figure=draw_course,
    conclude=concluding("Trained twice as long, selective attention still has the smaller loss."),
)
