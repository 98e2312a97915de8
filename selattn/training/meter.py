"""Sums over the steps since the last record: a record is about all of them, also if the run stops in between."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selattn.training.record import Losses


class Meter:
    """Loss, memory term, tokens and kept fractions of the training steps.

    Losses arrive as shares of a step (the Trainer divides by the labels of all micro batches and devices), so their sum
    over micro batches and devices is the step's loss. Kept fractions are weighted by tokens.

    Args:
        layers: of the model.
        device: where the sums are.
        kl: the share of the KL divergence (`outputs["kl_loss"]`) in the loss; None if there is none.
    """

    def __init__(self, layers: int, device: torch.device, kl: float | None = None) -> None:
        # lm loss, memory term, tokens, for each layer the kept tokens, and KL if there is any; fp64, so that sums are
        # exact enough to be the same in any grouping that is printed.
        self._layers, self._kl = layers, kl
        self._sums = torch.zeros(3 + layers + (kl is not None), dtype=torch.float64, device=device)
        self.tokens = 0  # before those in _sums

    def add(self, outputs: Any, inputs: dict[str, Tensor]) -> None:
        """One micro batch of this device."""
        zero = self._sums.new_zeros(())
        tokens = real_tokens(inputs)
        kept = kept_of(outputs, self._layers, self._sums.device)
        memory = outputs.get("memory_loss")
        parts = [outputs["lm_loss"], zero if memory is None else memory, tokens]
        more = [] if self._kl is None else [outputs["kl_loss"].double()[None]]
        self._sums += torch.cat([torch.stack([part.double() for part in parts]), kept.double() * tokens, *more])

    def gathered(self, reduce: Any) -> Tensor:
        """The sums over all devices."""
        return reduce(self._sums)

    def take(self, sums: Tensor, steps: int) -> Losses:
        """The record's values over the last `steps` steps; the sums begin anew."""
        lm_loss, memory_loss, tokens, *rest = sums.tolist()
        self.tokens += int(tokens)
        self._sums.zero_()
        found: Losses = {
            "loss": (lm_loss + memory_loss) / steps,
            "lm_loss": lm_loss / steps,
            "memory_loss": memory_loss / steps,
            "kept": fractions(rest[: self._layers], tokens),
            "tokens": self.tokens,
        }
        if self._kl is not None:
            found["kl_loss"] = rest[-1] / steps
            found["loss"] += self._kl * (rest[-1] - lm_loss) / steps
        return found

    def state(self, sums: Tensor) -> dict[str, Any]:
        """What a checkpoint has to keep: JSON numbers are exact."""
        return {"sums": ["nan" if x != x else x for x in sums.tolist()], "tokens": self.tokens}

    def restore(self, state: dict[str, Any], first: bool) -> None:
        """Go on from a checkpoint. The sums were over all devices, so the first one takes them."""
        self.tokens = state["tokens"]
        if first:
            self._sums.copy_(torch.tensor([float(x) for x in state["sums"]], dtype=torch.float64))


def real_tokens(inputs: dict[str, Tensor]) -> Tensor:
    """Tokens of a batch that are not padding; with an encoder those of the decoder."""
    if "decoder_attention_mask" in inputs:
        return inputs["decoder_attention_mask"].sum()
    if "attention_mask" in inputs:
        return inputs["attention_mask"].sum()
    return torch.tensor(inputs["input_ids"].numel(), device=inputs["input_ids"].device)


def predicted(inputs: dict[str, Tensor]) -> Tensor:
    """The labels that tokens have a loss for: a decoder alone predicts no first token, one with an encoder does."""
    labels = inputs["labels"]
    return labels if "decoder_attention_mask" in inputs else labels[:, 1:]


def kept_of(outputs: Any, layers: int, device: torch.device) -> Tensor:
    """[layers], the fraction that each keeps; NaN if none selects."""
    kept: Tensor | None = outputs.get("kept")
    return torch.full((layers,), torch.nan, device=device) if kept is None else kept


def fractions(kept: list[float], tokens: float) -> list[float | None] | None:
    """Kept fractions of the layers, None for those that do not select, and None if none does."""
    found = [None if x != x else x / tokens for x in kept]
    return found if any(x is not None for x in found) else None
