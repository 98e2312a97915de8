"""Selective attention (Leviathan, Kalman, Matias; ICLR 2025): tokens that mask tokens no longer needed.

The names below are loaded when they are first used, so that `import selattn` and `selattn --help` do not
wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from selattn._later import import_after

if TYPE_CHECKING:
    from selattn.cache import (
        H2O,
        Budgets,
        Policy,
        Selective,
        SelectiveCache,
        Threshold,
        Tova,
        Window,
        eviction_order,
        kept_positions,
    )
    from selattn.conversion import convert
    from selattn.evaluation import evaluate
    from selattn.evaluation.tracing import trace
    from selattn.models import (
        NewForm,
        SelectiveConfig,
        SelectiveForCausalLM,
        evicting,
        load,
        make_selective,
        make_standard,
    )
    from selattn.ops import AuxOutput, AuxRequest, Selection, Sequences, causal_attention, selective_attention
    from selattn.pruning import prune
    from selattn.training import train
    from selattn.views import plot
    from selattn.views.explorer import explore

__version__ = "0.2.0"

__all__ = [
    "H2O",
    "AuxOutput",
    "AuxRequest",
    "Budgets",
    "NewForm",
    "Policy",
    "Selection",
    "Selective",
    "SelectiveCache",
    "SelectiveConfig",
    "SelectiveForCausalLM",
    "Sequences",
    "Threshold",
    "Tova",
    "Window",
    "__version__",
    "causal_attention",
    "convert",
    "evaluate",
    "evicting",
    "eviction_order",
    "explore",
    "kept_positions",
    "load",
    "make_selective",
    "make_standard",
    "plot",
    "prune",
    "selective_attention",
    "trace",
    "train",
]

# Where a public name lives, if not in `selattn.ops`.
_HOMES = {
    **dict.fromkeys(("SelectiveConfig", "SelectiveForCausalLM", "load"), "selattn.models"),
    **dict.fromkeys(("Budgets", "H2O", "Policy", "Selective", "Threshold", "Tova", "Window"), "selattn.cache"),
    "SelectiveCache": "selattn.cache",
    **dict.fromkeys(("eviction_order", "kept_positions"), "selattn.cache"),
    **dict.fromkeys(("NewForm", "evicting", "make_selective", "make_standard"), "selattn.models"),
    "convert": "selattn.conversion",
    "evaluate": "selattn.evaluation",
    "explore": "selattn.views.explorer",
    "plot": "selattn.views.plot",
    "prune": "selattn.pruning",
    "trace": "selattn.evaluation.tracing",
    "train": "selattn.training",
}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOMES.get(name, "selattn.ops"))
    value = globals()[name] = home if name == "plot" else getattr(home, name)
    return value


def __dir__() -> list[str]:
    """Every name that can be asked for, loaded or not."""
    return sorted({*globals(), *__all__})


import_after("transformers.models.auto.configuration_auto", "selattn.models")  # which registers the models
import_after("peft.utils.constants", "selattn._peft")
