"""Log-perplexity: the mean over tokens of -log p(next token), in nats, with or without budgets in force.

Batches of rows are always the same, whatever the number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selattn.cache import Budgets, Policy, import_policy
from selattn.errors import NotFiniteError, SelattnError
from selattn.models.outputs import next_tokens
from selattn.models.protocols import LanguageModel, LayeredModel
from selattn.utils.distributed import Team


@dataclass(frozen=True)
class Batch:
    """Some rows [B, N]."""

    input_ids: Tensor
    wanted: Tensor  # the target of each token; -100 for none
    attention_mask: Tensor | None  # None without padding
    position_ids: Tensor | None  # restart at each document of a packed row; else None
    longest: int  # tokens of the longest sequence: a budget of as many or more evicts nothing

    @property
    def tokens(self) -> int:
        """How many tokens are predicted."""
        return int((self.wanted >= 0).sum())

    def to(self, device: torch.device) -> Batch:
        """The same batch with its tensors on a device."""
        tensors = (self.input_ids, self.wanted, self.attention_mask, self.position_ids)
        ids, wanted, mask, positions = (None if x is None else x.to(device) for x in tensors)
        assert ids is not None
        assert wanted is not None
        return Batch(ids, wanted, mask, positions, self.longest)


def make_batches(rows: Sequence[dict[str, Tensor]], size: int) -> list[Batch]:
    """Batches of rows of like length, the longest first: a batch of short rows costs little, or nothing."""
    lengths = [_longest(row) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (-lengths[i], i))
    return [
        _batch([rows[i] for i in order[start : start + size]], lengths[order[start]])
        for start in range(0, len(order), size)
    ]


def _batch(rows: list[dict[str, Tensor]], longest: int) -> Batch:
    columns = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    mask = columns.get("attention_mask")
    if mask is not None:
        end = int(mask.sum(-1).max())  # rows are padded on the right
        columns = {name: column[:, :end] for name, column in columns.items()}
        mask = None if bool(mask[:, :end].all()) else columns["attention_mask"]
    return Batch(columns["input_ids"], next_tokens(columns["labels"]), mask, columns.get("position_ids"), longest)


def _longest(row: dict[str, Tensor]) -> int:
    """Tokens of the longest sequence of a row."""
    if "position_ids" in row:
        return int(row["position_ids"].max()) + 1
    return int(row["attention_mask"].sum()) if "attention_mask" in row else len(row["input_ids"])


def head_loss(head: Callable[[Tensor], Tensor], states: Tensor, batch: Batch) -> float:
    """The sum over the batch's tokens of -log p, in fp32 or better; `head` gives the logits of states [B, N, d_model].

    Row by row, and only where a token is to be predicted: the logits of a whole batch are large.
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
    """The mean loss over all tokens, in ordinary full forwards with the budgets in force.

    Args:
        model: in evaluation mode.
        batches: the text, all of it in every process.
        budgets: K_l; None for the model's own, which usually has none.
        policy: None for the model's own.
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
    """The loss; raises if it is NaN or infinite."""
    if not math.isfinite(loss):
        raise NotFiniteError(f"the loss is {loss}")
    return loss


def count_tokens(batches: Sequence[Batch]) -> int:
    """How many tokens are predicted; raises if there are none."""
    tokens = sum(batch.tokens for batch in batches)
    if not tokens:
        raise SelattnError("there is no token to predict in this text: give longer documents")
    return tokens
