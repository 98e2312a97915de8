"""Table 8: how many parameters the paper's models have; nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab
from lab.runs import find_run
from lab.runs.scales import Scale
from selattn.training.model import make_model, model_config

_PAPER = {
    8: 33_603_584, 10: 59_699_200, 12: 97_615_872, 14: 149_666_048, 16: 218_226_688, 18: 305_717_760,
    20: 414_387_200, 22: 546_641_920, 24: 704_950_272, 26: 891_468_032, 28: 1_108_645_888,
}  # fmt: skip
WITHIN = 0.001  # of the paper's count: what its norms and its vocabulary are exactly it does not say


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """No trained model is needed."""
    return {}


def evaluate(lab: Lab) -> Found:
    """Count the parameters of models without weights."""
    cells, off, extra = [], [], []
    for d, paper in _PAPER.items():
        counts = {kind: _count(f"c4-d{d}-{kind}") for kind in ("standard", "selective")}
        off.append(abs(counts["selective"] / paper - 1))
        extra.append(counts["selective"] - counts["standard"])
        cells += [Cell(f"d={d}", kind, (float(count),), float(paper), digits=0) for kind, count in counts.items()]
    claims = (
        Claim(
            "Our models have the paper's sizes.", (max(off),), "largest relative difference to the paper's count",
            than=WITHIN, side="below", exact=True, digits=5,
        ),
        Claim(
            "Selective attention adds no parameters.", (float(max(extra)),), "parameters more", side="equal", paper=0.0,
            exact=True, digits=0,
        ),
    )  # fmt: skip
    return Found(tuple(cells), claims, ("Vocabulary 8,000, 512 learned positions, embeddings not tied.",))


def _count(name: str) -> int:
    run = find_run(name)
    with torch.device("meta"):
        model = make_model(run, model_config(run))
    return sum(parameter.numel() for parameter in model.parameters())


EXPERIMENT = Experiment(
    name="parameters",
    paper="Table 8",
    sentence="the number of parameters of the paper's models",
    needs=needs,
    evaluate=evaluate,
)
