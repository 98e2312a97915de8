"""T5 with span corruption (the paper's appendix): its three sizes on C4, and a tiny one for a laptop.

c4-t5-base-selective   small, base or large, and the kind: standard, or selective in the decoder's self-attention

The paper takes "the standard T5 pre-training recipe and code from T5X": Adafactor, the inverse square root of the step
with 10,000 steps of warm-up (here from 0, there constant), 128 rows of 512 tokens, no dropout. It does not say which
T5: these are the sizes of the first (Raffel et al., 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lab.t5 import SpanData, T5Run
from selattn.training.config import (
    Batching,
    Checkpoints,
    Evaluation,
    Machine,
    Optimizer,
    RunConfig,
    Schedule,
)

SIZES = {
    "small": {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 8},
    "base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12},
    "large": {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 16},
}
TINY = {"d_model": 128, "d_ff": 384, "d_kv": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
KINDS = ("standard", "selective")
_T5X = Optimizer(kind="adafactor", lr=0.01, weight_decay=0.0, clip=0.0)


def at_paper_scale(name: str, size: dict[str, Any], kind: str) -> RunConfig:
    """A run of the appendix. T5's own tokenizer can be given as data.tokenizer; else one of its size is trained."""
    return T5Run(
        name,
        data=SpanData(source="c4", vocabulary=32_000, context=512),
        model={"attention": kind, **size, "vocab_size": 32_128},
        optimizer=_T5X,
        schedule=Schedule(steps=524_288, warmup=10_000, decay="inverse_sqrt"),
        batch=Batching(size=128),
        evaluation=Evaluation(every=8_192, rows=8_192),
        machine=Machine(precision="bf16"),
    )


def tiny(name: str, kind: str) -> RunConfig:
    """Two layers each way, 128 tokens in and 29 out: minutes on a laptop, on the text that comes with Python."""
    return T5Run(
        name,
        data=SpanData(vocabulary=3072, context=128),
        model={"attention": kind, **TINY},
        optimizer=Optimizer(kind="adafactor", lr=0.02, weight_decay=0.0),
        schedule=Schedule(steps=400, warmup=40, decay="linear"),
        batch=Batching(size=16),
        evaluation=Evaluation(every=50, rows=256, batch=32),
        checkpoints=Checkpoints(every=100),
        log_every=20,
    )


RUNS: dict[str, Callable[[], RunConfig]] = {
    **{
        f"c4-t5-{size}-{kind}": partial(at_paper_scale, f"c4-t5-{size}-{kind}", sizes, kind)
        for size, sizes in SIZES.items()
        for kind in KINDS
    },
    **{f"t5-tiny-{kind}": partial(tiny, f"t5-tiny-{kind}", kind) for kind in KINDS},
}
