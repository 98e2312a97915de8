"""Selective attention (Leviathan, Kalman, Matias; ICLR 2025): tokens that mask tokens no longer needed.

The names below are loaded when they are first used, so that `import selattn` and `selattn --help` do not
wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from selattn import _auto

if TYPE_CHECKING:
    from selattn.models import SelectiveConfig, SelectiveForCausalLM
    from selattn.ops import Selection, Sequences, causal_attention, selective_attention

__version__ = "0.1.0"

__all__ = [
    "Selection",
    "SelectiveConfig",
    "SelectiveForCausalLM",
    "Sequences",
    "__version__",
    "causal_attention",
    "selective_attention",
]

_MODELS = {"SelectiveConfig", "SelectiveForCausalLM"}


def __getattr__(name: str) -> Any:
    """Load a public name from `selattn.models` or `selattn.ops` on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "selattn.models" if name in _MODELS else "selattn.ops"
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    """Every name that can be asked for, loaded or not."""
    return sorted({*globals(), *__all__})


_auto.install()
