"""From what transformers passes (masks, positions, cumulative lengths) to the sequences of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops import Sequences


def sequences_of(
    shape: tuple[int, int],
    past: int,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cu_seq_lens: Tensor | None,
    device: torch.device,
) -> tuple[Sequences | None, Tensor]:
    """The sequences over past + N tokens (None: one in each row, no padding), and the N new tokens' positions [B, N].

    Padding is what `attention_mask` says. Documents are told by cumulative lengths, or else by positions that restart.
    A cache holds one sequence in each row.
    """
    batch, length = shape
    if attention_mask is not None and tuple(attention_mask.shape) != (batch, past + length):
        raise SelattnError(
            f"attention_mask must be [batch, tokens so far] = {[batch, past + length]} with 1 for real tokens, "
            f"not {list(attention_mask.shape)}"
        )
    mask = _unless_all_real(attention_mask)
    if cu_seq_lens is not None:
        if batch != 1 or past:
            raise SelattnError("cu_seq_lens_q describes one packed row: batch size 1, and no cache before it")
        sequences: Sequences | None = Sequences.from_cu_seqlens(cu_seq_lens.to(device), length)
    elif position_ids is not None and past == 0 and length > 1:
        sequences = _unless_one(Sequences.from_position_ids(position_ids.expand(batch, length), mask))
    else:
        sequences = None if mask is None else Sequences.from_mask(mask)
    if position_ids is not None:
        return sequences, position_ids.expand(batch, length)
    if sequences is None:
        return None, torch.arange(past, past + length, device=device).expand(batch, length)
    return sequences, sequences.positions[:, past:]


def _unless_all_real(mask: Tensor | None) -> Tensor | None:
    """A mask with no padding is no mask, which is cheaper. In a compiled graph its values are unknown, so it stays."""
    if mask is None or (not torch.compiler.is_compiling() and bool(mask.all())):
        return None
    return mask.bool()


def _unless_one(sequences: Sequences) -> Sequences | None:
    """None for one unpadded sequence in each row."""
    if torch.compiler.is_compiling() or bool(sequences.start.any()):
        return sequences
    return None
