"""What the models give back: transformers' outputs, with what selection adds."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

from torch import Tensor
from transformers import modeling_outputs
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

OURS = ("lm_loss", "memory_loss", "kept", "f", "evicted_at")  # what selection adds to the output of a language model


@dataclass
class SelectiveModelOutput(BaseModelOutputWithPast):
    """Of the decoder without its head.

    Columns of `attentions` and `f` are the tokens of the row so far, padding included, also where they come
    from a pruned cache: a token that has left has the weight 0.

    Attributes:
        kept: [L], for each layer sum over sequences of max_i M_i, divided by the number of real tokens; NaN for layers
            that do not select. With `output_kept=True`.
        f: F [B, S, N, M] of each layer, None for layers that do not select; with `output_f=True`. From
            a cache it is NaN for tokens that have left.
        evicted_at: [B, P, N] of each layer, the row from which a token is gone, `selattn.cache.NEVER` if it stays;
            P is 1, or the number of key-value heads where each evicts on its own. With `output_evictions=True`.
    """

    kept: Tensor | None = None
    f: tuple[Tensor | None, ...] | None = None
    evicted_at: tuple[Tensor, ...] | None = None


@dataclass
class SelectiveOutput(CausalLMOutputWithPast):
    """Of the language model. `loss` = `lm_loss` + `memory_loss`; the two parts are detached, for logging.

    Attributes:
        lm_loss: the plain cross-entropy.
        memory_loss: the memory term, between 0 and epsilon; None where a cache was used, or if no layer selects.
        kept: [L], the kept fraction of each layer (the memory term is epsilon times its mean over selective layers);
            None where `memory_loss` is.
        f: F of each layer, with `output_f=True`.
        evicted_at: the row from which each token is gone, of each layer, with `output_evictions=True`.
    """

    lm_loss: Tensor | None = None
    memory_loss: Tensor | None = None
    kept: Tensor | None = None
    f: tuple[Tensor | None, ...] | None = None
    evicted_at: tuple[Tensor, ...] | None = None


_MADE: dict[type, Any] = {}


def selective_output(kind: type) -> Any:
    """The output class `kind` of a stock model with `OURS` as fields: DDP makes outputs anew, of their fields alone."""
    if kind not in _MADE:
        fields = [(name, Any, None) for name in OURS]
        inside = {"__module__": __name__}  # at once: transformers registers the class by its whole name
        _MADE[kind] = make_dataclass(f"Selective{kind.__name__}", fields, bases=(kind,), namespace=inside)
    return _MADE[kind]


# Now, not with the first output: torch.export wants them registered before it begins.
for _kind in ("CausalLMOutputWithPast", "CausalLMOutputWithCrossAttentions", "MoeCausalLMOutputWithPast"):
    selective_output(getattr(modeling_outputs, _kind))
selective_output(modeling_outputs.Seq2SeqLMOutput)


def __getattr__(name: str) -> Any:
    """The classes that are made on the fly, by name: what is pickled finds them here."""
    stock = getattr(modeling_outputs, name.removeprefix("Selective"), None)
    if name.startswith("Selective") and isinstance(stock, type):
        return selective_output(stock)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
