"""Figure 2: the paper's sketch of the operator, to which every backend is held; nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab
from lab.runs.scales import Scale
from selattn.ops import selective_attention

_LENGTHS = {"smoke": (64,), "laptop": (64, 512), "paper": (64, 512)}
WITHIN = 1e-5  # in fp32, with outputs near 1


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """No trained model is needed."""
    return {}


def evaluate(lab: Lab) -> Found:
    """The largest difference of output and gradients to the line-by-line backend, on random inputs."""
    cells, worst = [], []
    for length in _LENGTHS[lab.scale.name]:
        base = _outcome(length, "reference")
        for backend in ("auto", "chunked"):
            found = _outcome(length, backend)
            off = max(float((a - b).abs().max()) for a, b in zip(found, base, strict=True))
            worst.append(off)
            cells.append(Cell(f"N = {length}", backend, (off,), digits=8))
    claim = Claim(
        "Every backend computes the paper's sketch.", (max(worst),),
        "largest difference of output and gradients to the sketch, line by line", than=WITHIN, side="below",
        exact=True, digits=8,
    )  # fmt: skip
    return Found(tuple(cells), (claim,), ("2 rows, 4 heads of 32, fp32, random inputs of seed 0.",))


def _outcome(length: int, backend: str) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    query, key, value = inputs = [torch.randn(2, 4, length, 32, generator=made).requires_grad_() for _ in range(3)]
    output = selective_attention(query, key, value, backend=backend)
    output.square().mean().backward()
    return [output.detach(), *(each.grad for each in inputs if each.grad is not None)]


EXPERIMENT = Experiment(
    name="pseudocode",
    paper="Figure 2",
    sentence="every backend beside the paper's sketch of the operator",
    needs=needs,
    evaluate=evaluate,
)
