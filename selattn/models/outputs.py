"""Outputs of the models that transformers' own lack, and the memory term of the loss (the paper's equation 2).

    epsilon * [sum over layers and sequences of max_i M_i] / (L * n)

n is the number of real tokens, L the number of layers that select. The kept fraction of a layer is its part of the
bracket divided by n, so the term is epsilon times the mean kept fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import modeling_outputs
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from selattn.ops import Sequences

OURS = ("lm_loss", "memory_loss", "kept", "f", "evicted_at")  # what selection adds to the output of a language model


@dataclass
class SelectiveModelOutput(BaseModelOutputWithPast):
    """Of the decoder without its head.

    Columns of `attentions` and `f` are the tokens of the row so far, padding included, also where they come from a
    pruned cache: an evicted token has the weight 0.

    Attributes:
        kept: [L], for each layer sum over sequences of max_i M_i, divided by the number of real tokens; NaN for layers
            that do not select. With `output_kept=True`.
        f: F [B, S, N, M] of each layer, None for layers that do not select; with `output_f=True`. From a cache it is
            NaN for evicted tokens.
        evicted_at: [B, P, N] of each layer, the row from which a token is evicted, `selattn.cache.NEVER` if it stays;
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
        memory_loss: the memory term, between 0 and epsilon; None with a cache, or if no layer selects.
        kept: [L], the kept fraction of each layer (the memory term is epsilon times its mean over selective layers);
            None where `memory_loss` is.
        f: F of each layer, with `output_f=True`.
        evicted_at: the row from which each token is evicted, of each layer, with `output_evictions=True`.
    """

    lm_loss: Tensor | None = None
    memory_loss: Tensor | None = None
    kept: Tensor | None = None
    f: tuple[Tensor | None, ...] | None = None
    evicted_at: tuple[Tensor, ...] | None = None


_MADE: dict[type, Any] = {}


def selective_output(kind: type) -> Any:
    """The output class `kind` of a stock model with `OURS` as fields: DDP rebuilds outputs from their fields alone."""
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
    """The generated classes by name, for pickle."""
    stock = getattr(modeling_outputs, name.removeprefix("Selective"), None)
    if name.startswith("Selective") and isinstance(stock, type):
        return selective_output(stock)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# -- losses -----------------------------------------------------------------------------------------------------------


def with_memory_term(loss: Tensor, kept: Tensor | None, epsilon: float, share: Tensor | float) -> dict[str, Tensor]:
    """`loss`, `lm_loss`, and if something was kept `memory_loss` and `kept` of an output.

    Args:
        loss: the cross-entropy.
        kept: [L] of `kept_fractions`; None if it was not asked for.
        epsilon: the weight of the memory term.
        share: of `share_of_labels`.
    """
    losses = {"loss": loss, "lm_loss": loss.detach().clone()}  # a trainer scales the loss in place
    if kept is not None:
        term = memory_term(kept.to(loss.device), epsilon)
        term = term * (share.to(loss.device) if isinstance(share, Tensor) else share)
        losses |= {"memory_loss": term.detach(), "kept": kept.detach()}
        if epsilon:
            losses["loss"] = loss + term
    return losses


def kept_tokens(M: Tensor, sequences: Sequences | None) -> Tensor:
    """Sum over sequences of max_i M_i, from M [B, S, N]; the mean over several selection masks."""
    per_row = M.mean(1)
    if sequences is None:
        return per_row.amax(-1).sum()
    # One place for each token: those where a sequence begins collect the maximum of their sequence. Padding has M = 0
    # and goes to place 0, where it cannot win.
    start = torch.where(sequences.real, sequences.start, 0).expand_as(per_row)
    return torch.zeros_like(per_row).scatter_reduce(-1, start, per_row, "amax").sum()


def kept_fractions(kept: Sequence[Tensor | None], x: Tensor, sequences: Sequences | None) -> Tensor:
    """[L], `kept_tokens` of each layer over the real tokens of x [B, N, ...]; NaN for layers that do not select."""
    shape = tuple(x.shape[:2])
    if sequences is None:
        n = torch.tensor(float(shape[0] * shape[1]), device=x.device)
    else:
        n = sequences.real.expand(shape).sum().clamp(min=1).float().to(x.device)
    none = torch.full_like(n, torch.nan)
    return torch.stack([none if tokens is None else tokens.to(n.device) / n for tokens in kept])  # layers have devices


def memory_term(kept: Tensor, epsilon: float) -> Tensor:
    """epsilon times the mean kept fraction of the layers that select (NaN marks the others); 0 if none does."""
    selects = ~kept.isnan()
    total = torch.where(selects, kept, 0.0).sum()
    return epsilon * total / selects.sum().clamp(min=1)


def share_of_labels(targets: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor | float:
    """The weight of a batch's term among those that one step sums up: its share of the labels, as for the loss itself.

    Labels are counted as the trainer counts them, so that the shares of a step add up to 1: over micro batches, and
    over processes too where it counts across them (it then multiplies the loss by their number, and DDP divides by it).

    Args:
        targets: the label that each token predicts, -100 for none.
        num_items_in_batch: the labels of the whole step; None if the step has one batch.
    """
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(targets.device)
    return 1.0 if num_items_in_batch is None else (targets != -100).sum() / num_items_in_batch


def next_tokens(labels: Tensor, sequences: Sequences | None = None) -> Tensor:
    """[B, N] the label that each token predicts: that of the next token of its sequence, -100 after the last.

    The labels belong to the last N tokens of the sequences.
    """
    if sequences is None:
        return nn.functional.pad(labels[..., 1:], (0, 1), value=-100)
    length = labels.shape[-1]
    real, start = sequences.real[:, -length:], sequences.start[:, -length:]
    index = torch.arange(length, device=labels.device)
    later = torch.where(real, index, length).flip(-1).cummin(-1).values.flip(-1)  # a real token here or after
    at = nn.functional.pad(later, (0, 1), value=length)[:, 1:].expand_as(labels)
    predicted = nn.functional.pad(labels, (0, 1), value=-100).gather(-1, at)
    same = nn.functional.pad(start, (0, 1), value=-1).expand(len(labels), -1).gather(-1, at) == start
    return predicted.masked_fill(~(real & same), -100)
