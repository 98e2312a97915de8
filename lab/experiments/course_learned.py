"""How the gap develops with the number of training tokens with learned positions, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.courses import concluding, course, draw_course
from lab.engine.frame import Experiment, Found, Need
from lab.engine.lab import Lab
from lab.engine.trio import KINDS, trio
from lab.runs.scales import Scale


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The three models with learned positions."""
    return trio(scale, seeds, positions="learned")


def evaluate(lab: Lab) -> Found:
    """Their losses at every evaluation."""
    return course(lab, KINDS)


EXPERIMENT = Experiment(
    name="course-learned",
    paper="Section 6.1, and open: training tokens",
    sentence="the gap between standard and selective attention over training, with learned positions",
    needs=needs,
    evaluate=evaluate,
    figure=draw_course,
    conclude=concluding(
        "With learned positions, as in the paper, selective attention has the smaller loss.", paper=0.04
    ),
)
