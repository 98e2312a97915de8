"""How good a model is, and what that costs: log-perplexity, multiple choice, memory and speed, pruned or not.

The names below are loaded when they are first used: reading a record of what was seen needs no model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selattn.evaluation.compare import evaluate
    from selattn.evaluation.losses import Batch, log_perplexity, make_batches
    from selattn.evaluation.subjects import Subject
    from selattn.evaluation.tradeoff import Curve, measure_tradeoff
    from selattn.utils.distributed import Team

__all__ = ["Batch", "Curve", "Subject", "Team", "evaluate", "log_perplexity", "make_batches", "measure_tradeoff"]

_HOMES = {
    "evaluate": "compare",
    **dict.fromkeys(("Batch", "log_perplexity", "make_batches"), "losses"),
    "Subject": "subjects",
    **dict.fromkeys(("Curve", "measure_tradeoff"), "tradeoff"),
}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"selattn.evaluation.{_HOMES[name]}" if name in _HOMES else "selattn.utils.distributed"
    value = globals()[name] = getattr(import_module(home), name)
    return value
