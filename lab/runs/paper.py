"""The paper's language models on C4 (section 5 and the appendix), at the paper's scale.

c4-d12-selective            model size d, and the kind: standard, selective, memory (selective with the memory loss)
c4-d12-context1024-memory   the context-size experiments, with their batch of 128
c4-d12-all-local-32         the baselines of table A.8, and sparse attention
c4-d12-heads24-standard     standard attention with more heads
c4-d12-without-shift        the ablations
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from selattn.training.config import Batching, Evaluation, Machine, RunConfig, Schedule, TextData
from selattn.training.presets import KINDS, size

SIZES = range(8, 29, 2)
CONTEXTS = (512, 1024, 2048)
WINDOWS = (32, 64, 128, 256, 384, 448, 480)
_SHORT = 65_536  # steps of the experiments on self-impact


def c4(
    name: str,
    d: int,
    model: dict[str, Any],
    context: int = 512,
    batch: int = 256,
    steps: int = 524_288,
) -> RunConfig:
    """A run of the paper. AdamW, learning rate, cosine and warm-up are the defaults of their settings."""
    return RunConfig(
        name,
        data=TextData(source="c4", vocabulary=8000, layout="documents", context=context),
        model=size(d) | model,
        batch=Batching(size=batch),
        schedule=Schedule(steps=steps),
        evaluation=Evaluation(every=8_192, rows=8_192),
        machine=Machine(precision="bf16", compile=True),
    )


def _settings() -> dict[str, dict[str, Any]]:
    """The settings of every run by name."""
    runs: dict[str, dict[str, Any]] = {}
    for d in SIZES:
        for kind, model in KINDS.items():
            runs[f"c4-d{d}-{kind}"] = {"d": d, "model": model}
    for context in CONTEXTS:
        for kind, model in KINDS.items():
            name = f"c4-d12-context{context}-{kind}"
            runs[name] = {"d": 12, "model": model, "context": context, "batch": 128}
    for window in WINDOWS:
        local = f"local:{window}"
        runs[f"c4-d12-all-local-{window}"] = {"d": 12, "model": {"attention": [local]}}
        runs[f"c4-d12-local-global-{window}"] = {"d": 12, "model": {"attention": [local] * 3 + ["standard"]}}
    for context in CONTEXTS:  # Child et al.'s strides are near the root of the context; the paper does not give them
        for sparse in ("strided:32", "fixed:32:8"):
            name = f"c4-d12-context{context}-{sparse.partition(':')[0]}"
            runs[name] = {"d": 12, "model": {"attention": [sparse]}, "context": context, "batch": 128}
    for d in (8, 12, 16):
        for heads in (d + d // 4, d + d // 2, 2 * d):
            model = {**KINDS["standard"], "num_attention_heads": heads}
            runs[f"c4-d{d}-heads{heads}-standard"] = {"d": d, "model": model}
    for d in (8, 12):
        runs[f"c4-d{d}-separate"] = {"d": d, "model": {**KINDS["selective"], "selection_source": "separate"}}
    for d in (10, 12, 14, 16, 18, 26):
        for name, shift in (("short", True), ("without-shift", False)):
            model = {**KINDS["selective"], "selection_shift": shift}
            runs[f"c4-d{d}-{name}"] = {"d": d, "model": model, "steps": _SHORT}
    for d in (12, 14, 16, 18, 20, 24):
        model = {**KINDS["selective"], "selection_protect_first": False}
        runs[f"c4-d{d}-without-bos-constraint"] = {"d": d, "model": model}
    for d in (12, 14, 18):
        model = {**KINDS["selective"], "selection_protect_self": False}
        runs[f"c4-d{d}-without-self-constraint"] = {"d": d, "model": model}
    runs["c4-d12-without-relu"] = {"d": 12, "model": {**KINDS["selective"], "selection_relu": False}}  # diverges
    return runs


RUNS: dict[str, Callable[[], RunConfig]] = {
    name: partial(c4, name, **settings) for name, settings in _settings().items()
}
