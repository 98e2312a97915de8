"""Attention of whole sequences by the rules of a layer: what every forward without a cache does."""

from __future__ import annotations

from torch import Tensor

from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.request import NOTHING, Attention, AuxRequest, Request
from selattn.ops.rules import Rules
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
    request = Request(
        tokens.query,
        tokens.key,
        tokens.value,
        rules,
        wanted,
        start=None if sequences is None else sequences.start,
        until=evicted_at,
        selection_query=tokens.selection_query,
        selection_key=tokens.selection_key,
    )
    return dispatch.attend(request, backend)._replace(evicted_at=evicted_at)
