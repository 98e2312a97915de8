"""Log-perplexity: the mean over tokens of -log p(next token), in nats, with or without budgets in force."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from selattn.cache import Budgets, Policy, import_policy
from selattn.errors import NotFiniteError, SelattnError
from selattn.evaluation.batches import Batch
from selattn.models.seam import LanguageModel, LayeredModel
from selattn.utils.distributed import Team


def head_loss(head: Callable[[Tensor], Tensor], states: Tensor, batch: Batch) -> float:
    """The sum over the batch's tokens of -log p; `head` gives the logits of states [B, N, d_model].

    Row by row, and only where something is to be predicted: the logits of a whole batch are large. In fp32 or better.
    """
    found = 0.0
    for row, wanted in zip(states, batch.wanted, strict=True):
        chosen = wanted >= 0
        logits = head(row[chosen])
        exact = torch.promote_types(logits.dtype, torch.float32)
        found += float(nn.functional.cross_entropy(logits.to(exact), wanted[chosen], reduction="none").double().sum())
    return found


def batch_loss(model: LanguageModel, batch: Batch, budgets: Budgets | None, policy: Policy | None) -> float:
    """The sum over the batch's tokens of -log p, in one forward with the budgets in force."""
    ids, mask, positions = batch.input_ids, batch.attention_mask, batch.position_ids
    if isinstance(model, LayeredModel):
        return head_loss(model.head, model.states(ids, mask, positions, budgets, policy), batch)
    found = model(
        ids,
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
        cache_budgets=budgets,
        cache_policy=policy,
    )
    return head_loss(lambda row: row, found.logits, batch)


def log_perplexity(
    model: LanguageModel,
    batches: Sequence[Batch],
    budgets: Budgets | None = None,
    policy: str | Policy | None = None,
    team: Team | None = None,
    tick: Callable[[int], None] | None = None,
) -> float:
    """The mean loss over all tokens, in ordinary full forwards in which the budgets are in force.

    Args:
        model: in evaluation mode.
        batches: the text, all of it in every process.
        budgets: K_l; None for the model's own, which usually has none.
        policy: who leaves when a layer is full; None for the model's own.
        team: the processes that share the work.
        tick: called with the number of rows after each batch.
    """
    team = team or Team()
    sums = []
    chosen = None if policy is None else import_policy(policy)
    with torch.inference_mode():
        for batch in team.share(batches):
            here = batch.to(model.device)
            sums.append(batch_loss(model, here, budgets, chosen))
            if tick is not None:
                tick(len(here.input_ids))
    return finite(team.total(sums) / count_tokens(batches))


def finite(loss: float) -> float:
    """The loss, if it is a number."""
    if not math.isfinite(loss):
        raise NotFiniteError(f"the loss is {loss}")
    return loss


def count_tokens(batches: Sequence[Batch]) -> int:
    """How many tokens are predicted; an error if none is."""
    tokens = sum(batch.tokens for batch in batches)
    if not tokens:
        raise SelattnError("there is no token to predict in this text: give longer documents")
    return tokens
