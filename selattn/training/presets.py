"""The runs that `selattn train` knows by name: small language models that train on a laptop in minutes.

Any other run is `MODULE:NAME`: a function of that module without arguments that returns a whole `RunConfig`, or an
entry of its dictionary `RUNS`. The lab's are `lab.runs:NAME`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from selattn.errors import SelattnError, advice, shortened
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, RunConfig, Schedule, TextData

KINDS: dict[str, dict[str, Any]] = {
    "standard": {"attention": ["standard"]},
    "selective": {"attention": ["selective"]},
    "memory": {"attention": ["selective"], "memory_epsilon": 0.1},  # the paper's epsilon
}


def size(d: int) -> dict[str, Any]:
    """The paper's parameterisation: d_model = 64 d, and d layers of d heads."""
    return {"hidden_size": 64 * d, "num_hidden_layers": d, "num_attention_heads": d}


def small(name: str, kind: str) -> RunConfig:
    """d=3 on rows of 256 tokens: about two and a half million of them, of Python's documentation by default."""
    return RunConfig(
        name,
        data=TextData(vocabulary=4096, layout="packed", context=256),
        model=size(3) | KINDS[kind],
        batch=Batching(size=8),
        optimizer=Optimizer(lr=2e-3),
        schedule=Schedule(steps=1_200, warmup=100),
        evaluation=Evaluation(every=200, rows=256, batch=16),
        checkpoints=Checkpoints(every=100),
        log_every=25,
    )


RUNS: dict[str, Callable[[], RunConfig]] = {
    f"text-small-{kind}": partial(small, f"text-small-{kind}", kind) for kind in KINDS
}


def find_run(name: str) -> RunConfig:
    """The run of a name or `MODULE:NAME`, as the command line takes it."""
    module, colon, inside = name.partition(":")
    return _imported(module, inside) if colon else named_run(name)


def named_run(name: str) -> RunConfig:
    """The run of that name; for a mistyped one the nearest is suggested."""
    if name not in RUNS:
        hint = advice(name, RUNS, "see 'selattn train --list'; a run of your own is MODULE:FUNCTION")
        raise SelattnError(f"unknown run {shortened(name)!r}; {hint}")
    return RUNS[name]()


def _imported(module: str, name: str) -> RunConfig:
    if "" not in sys.path:  # as `python -m` has it: modules of the folder where the command is given
        sys.path.insert(0, "")
    try:
        home = import_module(module)
    except (ImportError, ValueError) as error:
        raise SelattnError(f"cannot import {shortened(module)!r} of the run {module}:{name}: {error}") from None
    known = getattr(home, "RUNS", {})
    make = known.get(name) or getattr(home, name, None)
    if make is not None and not callable(make):
        raise SelattnError(f"{module}:{name} is a {type(make).__name__}: a run is a function that returns a RunConfig")
    if make is None:
        hint = "name an entry of its RUNS, or a function that returns a RunConfig"
        raise SelattnError(f"{module} has no run {shortened(name)!r}; {advice(name, known or vars(home), hint)}")
    try:
        inspect.signature(make).bind()
    except TypeError:
        raise SelattnError(f"{module}:{name} takes arguments: a run is a function without any") from None
    run = make()
    if not isinstance(run, RunConfig):
        raise SelattnError(f"{module}:{name} returns a {type(run).__name__}: a run is a RunConfig")
    return run
