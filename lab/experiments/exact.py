"""Figure 2 and Table 8, where nothing is trained: the paper's sketch of the operator, and the sizes of its models."""

from __future__ import annotations

import torch

from lab.engine.experiment import Experiment
from lab.engine.lab import Lab
from lab.engine.records import Cell, Claim, Measured
from lab.runs import find_run
from lab.scales import PAIR, SELECTIVE, STANDARD
from selattn.ops import selective_attention
from selattn.training.model import make_model, model_config

_LENGTHS = {"smoke": (64,), "laptop": (64, 512), "paper": (64, 512)}
_CLOSE = 1e-5  # in fp32, with outputs near 1
_PAPER = {
    8: 33_603_584, 10: 59_699_200, 12: 97_615_872, 14: 149_666_048, 16: 218_226_688, 18: 305_717_760,
    20: 414_387_200, 22: 546_641_920, 24: 704_950_272, 26: 891_468_032, 28: 1_108_645_888,
}  # fmt: skip
WITHIN = 0.001  # of the paper's count: what its norms and its vocabulary are exactly it does not say


def _sketch(lab: Lab) -> Measured:
    """The largest difference of output and gradients to the line-by-line backend, on random inputs."""
    cells, worst = [], []
    for length in _LENGTHS[lab.scale.name]:
        base = _outcome(length, "reference")
        for backend in ("auto", "chunked"):
            other = _outcome(length, backend)
            off = max(float((a - b).abs().max()) for a, b in zip(other, base, strict=True))
            worst.append(off)
            cells.append(Cell(f"N = {length}", backend, (off,), digits=8))
    claim = Claim(
        "Every backend computes the paper's sketch.", (max(worst),),
        "largest difference of output and gradients to the sketch, line by line", than=_CLOSE, side="below",
        exact=True, digits=8,
    )  # fmt: skip
    return Measured(tuple(cells), (claim,), ("2 rows, 4 heads of 32, fp32, random inputs of seed 0.",))


def _outcome(length: int, backend: str) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    query, key, value = inputs = [torch.randn(2, 4, length, 32, generator=made).requires_grad_() for _ in range(3)]
    output = selective_attention(query, key, value, backend=backend)
    output.square().mean().backward()
    return [output.detach(), *(each.grad for each in inputs if each.grad is not None)]


def _sizes(lab: Lab) -> Measured:
    """Count the parameters of models without weights."""
    cells, off, extra = [], [], []
    for d, paper in _PAPER.items():
        counts = {kind: _count(f"c4-d{d}-{kind}") for kind in PAIR}
        off.append(abs(counts[SELECTIVE] / paper - 1))
        extra.append(counts[SELECTIVE] - counts[STANDARD])
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
    return Measured(tuple(cells), claims, ("Vocabulary 8,000, 512 learned positions, embeddings not tied.",))


def _count(name: str) -> int:
    run = find_run(name)
    with torch.device("meta"):
        model = make_model(run, model_config(run))
    return sum(parameter.numel() for parameter in model.parameters())


EXPERIMENTS = (
    Experiment(
        "pseudocode",
        "Figure 2",
        "every backend beside the paper's sketch of the operator",
        lambda scale, seeds: {},
        _sketch,
    ),
    Experiment(
        "parameters",
        "Table 8",
        "the number of parameters of the paper's models",
        lambda scale, seeds: {},
        _sizes,
    ),
)
