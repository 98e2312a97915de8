"""Attention of whole sequences by the rules of a layer: what every forward without a cache does."""

from __future__ import annotations

import torch
from torch import Tensor

from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.request import NOTHING, Attention, AuxRequest, Request
from selattn.ops.rules import Rules, position_bias
from selattn.ops.sequences import Sequences
from selattn.ops.tokens import Tokens


def attend_whole(
    tokens: Tokens,
    sequences: Sequences | None,
    rules: Rules,
    wanted: AuxRequest = NOTHING,
    backend: str | Backend = "auto",
    evicted_at: Tensor | None = None,
) -> Attention:
    """Whole sequences attend to themselves. Has gradients.

    `evicted_at` [B, P, N] prunes: the row from which each key is gone, as `selattn.eviction_order` gives it. What is
    real is told by `sequences`, not by the tokens.
    """
    positions = None if rules.bias is None else _positions(tokens, sequences)
    request = Request(
        tokens.query,
        tokens.key,
        tokens.value,
        rules._replace(bias=None),
        wanted,
        start=None if sequences is None else sequences.start,
        until=evicted_at,
        bias=None if positions is None else position_bias(rules, tokens.query, positions),
        selection_query=tokens.selection_query,
        selection_key=tokens.selection_key,
    )
    return dispatch.attend(request, backend)._replace(evicted_at=evicted_at)


def _positions(tokens: Tokens, sequences: Sequences | None) -> Tensor:
    """[B or 1, N] in the sequence."""
    return (
        torch.arange(tokens.key.shape[2], device=tokens.key.device)[None] if sequences is None else sequences.positions
    )
