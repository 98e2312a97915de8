"""One layer of the cache: at most K_l tokens for each text, in a pool where the evicted token is overwritten in place.

F at row i depends on earlier queries only, so the token to evict is known before row i attends, and its slot can take
the new one. A step of decoding touches nothing but the pool. It grows with the text until it has K_l slots, and from
then on its shapes are fixed. Several queries at once (a prompt, a draft) go through `Entries`, and what is kept of them
is put back into the slots.

The rows of the pool are independent texts. A batch is all of them, or those that `SelectiveCache.only` names.

Shapes: B rows of the batch; C slots; P independent eviction orders, 1 or the number G of key-value heads; S masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from selattn.cache.entries import Entries
from selattn.cache.handover import hand_over
from selattn.cache.policies import Policy
from selattn.cache.pool import SPARE, Pool, growth
from selattn.errors import SelattnError
from selattn.ops.order import NEVER, Kept
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules

FIXED = 4096  # a budget up to which a compiled step, or a pool of reserved rows, takes all slots at once


class Moment(NamedTuple):
    """What a draft goes back to: before it, and after each of its tokens."""

    f: Tensor  # [B, S, E] F
    score: Tensor  # [B, P, E]
    seen: Tensor  # [B]


class SlotLayer(CacheLayerMixin):
    """At most `budget` tokens for each row (None: all), and what the policy knows of them."""

    is_croppable = True
    is_sliding = False

    def __init__(self, budget: int | None, policy: Policy) -> None:
        # Not transformers' own: keys and values are those of the pool.
        self.budget = budget
        self.policy = policy
        self.pool: Pool | None = None  # made with the first tokens
        self.reserved: int | None = None  # rows of the pool; None: as many as the first batch has
        self.rows: Tensor | None = None  # [B] int64 on the CPU, the rows of the batch; None: all of the pool
        self.index: Tensor | None = None  # the same on the device of the pool
        self.entries: Entries | None = None  # while a draft may be taken back
        self.history: list[Moment] = []  # before a draft and after each of its tokens
        self.record_past = False
        self.deferred: Callable[[SlotLayer], Any] | None = None  # fills this layer, as soon as somebody looks into it
        self.filled = 0  # slots, from the first on, of which a row may have taken the last

    # -- storage ------------------------------------------------------------------------------------------------------

    def allocate(self, tokens: Tokens, rules: Rules) -> None:
        """Empty slots for tokens like these."""
        rows = tokens.key.shape[0] if self.reserved is None else self.reserved
        slots = 0 if self.budget is None else min(self.budget, SPARE)
        if rows > 1 and self.reserved is not None and self.budget is not None and self.budget <= FIXED:
            slots = self.budget  # so that no row that joins makes the others move
        self.pool = Pool.empty(tokens, rules, self.policy.per_head, self.policy.needs_weights, rows, slots)
        self.dtype, self.device = tokens.key.dtype, tokens.key.device
        self.filled = 0
        if self.rows is not None:
            self.index = self.rows.to(self.device)

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        """Whether there is storage."""
        return self.pool is not None

    @property
    def storage(self) -> Pool:
        """The pool, once there is one."""
        assert self.pool is not None
        return self.pool

    @property
    def batch(self) -> int:
        """B."""
        return self.storage.rows if self.rows is None else len(self.rows)

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """[B, G, kept, D] the keys of the tokens that are kept, for whoever looks."""
        return self._kept("keys")

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """[B, G, kept, Dv]."""
        return self._kept("values")

    @property
    def position(self) -> Tensor:
        """[B, P, C] of the tokens in the slots, -1 for an empty one."""
        return self.storage.position if self.index is None else self.storage.position[self.index]

    @property
    def f(self) -> Tensor:
        """[B, S, O, C] F of the slots, see `Pool`."""
        return self.storage.f if self.index is None else self.storage.f[self.index]

    @property
    def score(self) -> Tensor:
        """[B, P, C] of the policy."""
        return self.storage.score if self.index is None else self.storage.score[self.index]

    def _kept(self, name: str) -> Tensor | None:
        if self.deferred is not None:
            self.settle()
        if self.pool is None:
            return None
        if self.entries is not None:
            found: Tensor = getattr(self.entries, name)
            return found
        x: Tensor = getattr(self.pool, name)
        return x[slice(None) if self.index is None else self.index][:, :, : self.filled]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the layer stores, but for a draft."""
        if self.deferred is not None:
            self.settle()
        return {} if self.pool is None else self.pool.tensors()

    @property
    def length(self) -> Tensor:
        """[B] the tokens that each row of the batch has seen."""
        length = self.storage.length
        return length if self.index is None else length[self.index]

    @property
    def seen(self) -> Tensor:
        """[B] on the CPU, the same with padding."""
        seen = self.storage.seen
        return seen if self.rows is None else seen[self.rows]

    @property
    def grows(self) -> bool:
        """Whether the storage is still smaller than the budget."""
        return self.budget is None or self.storage.slots < self.budget

    def make_room(self, tokens: int, fixed: bool = False) -> None:
        """For `tokens`, and for some more, so that appending does not copy everything each time.

        fixed: for all that a budget of usual size can ever ask for, so that shapes stay as they are from now on.
        """
        at_once = fixed and self.budget is not None and self.budget <= FIXED
        if not self.grows or (tokens <= self.storage.slots and not at_once):
            return
        slots = self.budget if at_once and self.budget is not None else growth(tokens, self.budget)
        self.pool = self.storage.resized(slots)

    def shrink(self) -> None:
        """Free storage that no row needs, once it is the larger part."""
        taken = (self.storage.position >= 0).flatten(0, 1).any(0).nonzero()
        self.filled = int(taken[-1]) + 1 if len(taken) else 0
        wanted = growth(self.filled, self.budget)
        if self.reserved is None and self.storage.slots > 2 * wanted:
            self.pool = self.storage.resized(wanted)

    def take_slot(self, real: Tensor | None) -> int:
        """Make room for one more token in each row; how many slots a step then looks at."""
        eager = not torch.compiler.is_compiling()
        if self.grows:
            # Python's number, not a tensor's: a compiled step has it in its guards, and is compiled again to grow.
            self.filled = self._filled_after(real) if eager else self.filled + 1
            self.make_room(self.filled, fixed=not eager)
        elif not eager:
            self.filled = self.storage.slots
        elif self.filled < self.storage.slots:
            self.filled = max(self.filled, min(self.storage.slots, int(self.seen.max()) + 1))
        # Until the storage is full, an eager step leaves its empty end out; a compiled one has one shape for all steps.
        return self.filled if eager else self.storage.slots

    def _filled_after(self, real: Tensor | None) -> int:
        """The slots of the fullest row after one more token for each row that `real` [B, 1] says."""
        if real is None:
            return max(self.filled, min(self.filled, int(self.seen.max())) + 1)
        return max(self.filled, min(self.filled + 1, int((self.length + real[:, 0]).max())), 1)

    def use(self, rows: Tensor | None) -> None:
        """From now on the batch is these rows of the pool; None: all of them."""
        self.rows = rows
        self.index = None if rows is None or self.pool is None else rows.to(self.device)

    def advance(self, count: int, real: Tensor | None) -> None:
        """Every row of the batch has seen `count` more tokens, of which `real` [B, n] are no padding."""
        more = count if real is None else real.sum(-1)
        pool = self.storage
        if self.rows is None or self.index is None:
            pool.length += more
            pool.seen += count
        else:
            pool.length[self.index] += more
            pool.seen[self.rows] += count

    def drop_early(self) -> None:
        """Empty the slots of the tokens that the policy evicts although there is room."""
        pool = self.storage.of(self.index)
        if not pool.position.numel():
            return
        score = pool.score if self.policy.needs_weights else torch.zeros_like(pool.position, dtype=pool.f.dtype)
        reads = self.policy.needs_f and pool.f.shape[1]
        f = pool.smallest_f() if reads else torch.zeros_like(score[:, :1])
        leaves = self.policy.leaves(Kept(pool.position, score, f, NEVER if self.budget is None else self.budget))
        if leaves is not None:
            pool.position.masked_fill_(leaves & (pool.position >= 0), -1)
            if self.index is not None:
                self.storage.position[self.index] = pool.position
        if not torch.compiler.is_compiling():  # what is empty is taken again before the storage grows
            position = self.storage.position
            last = torch.arange(1, position.shape[-1] + 1, device=position.device)
            self.filled = int(last.where(position >= 0, 0).max())

    @torch.compiler.disable
    def settle(self) -> None:
        """Take what was deferred."""
        fill, self.deferred = self.deferred, None
        if fill is not None:
            with torch.no_grad():
                fill(self)

    # -- many queries at once -----------------------------------------------------------------------------------------

    def take(self) -> Entries:
        """The tokens, in the order of their positions; empty places come first."""
        if self.entries is not None:
            return self.entries
        pool = self.storage.of(self.index)
        used = min(pool.slots, int(self.seen.max()))
        position = pool.position[..., :used].long()
        score = pool.score[..., :used] if self.policy.needs_weights else pool.f.new_zeros(position.shape)
        if position.shape[1] > 1:
            return _union(pool, position, score)
        order = position[:, 0].argsort(-1)  # [B, C]
        return Entries(
            pool.keys.gather(2, _like(order, pool.keys)),
            pool.values.gather(2, _like(order, pool.values)),
            position[:, 0].gather(-1, order),
            torch.where(position >= 0, NEVER, 0).gather(-1, order[:, None]),
            pool.f[:, :, 0].gather(-1, order[:, None].expand(-1, pool.f.shape[1], -1)),
            score.gather(-1, order[:, None]),
            None if pool.selection_keys is None else pool.selection_keys.gather(2, _like(order, pool.selection_keys)),
        )

    def put(self, entries: Entries) -> None:
        """Make evictions final: what is kept goes into the slots, everything else is gone."""
        kept = entries.kept()
        longest = int(kept.sum(-1).max())
        # Rows that take no part may reach further.
        self.filled = longest if self.index is None else max(self.filled, longest)
        self.make_room(self.filled)
        pool, rows = self.storage, slice(None) if self.index is None else self.index
        each = torch.arange(entries.size, device=kept.device)
        order = torch.where(kept, each, entries.size).argsort(-1)[..., : pool.slots]  # [B, P, <= C], kept ones first
        held = kept.gather(-1, order)
        width = order.shape[-1]
        for storage, found in ((pool.keys, entries.keys), (pool.values, entries.values)):
            at = order[..., None].expand(-1, storage.shape[1], -1, storage.shape[-1])
            storage[rows, :, :width] = found.gather(2, at)
        positions = entries.positions[:, None].expand_as(kept).gather(-1, order)
        pool.position[rows, :, :width] = positions.masked_fill(~held, -1).to(pool.position.dtype)
        pool.position[rows, :, width:] = -1
        masks = pool.by_mask(order)
        pool.f[rows, :, :, :width] = entries.f[:, :, None].expand(-1, -1, masks.shape[2], -1).gather(-1, masks)
        if self.policy.needs_weights:
            pool.score[rows, :, :width] = entries.score.gather(-1, order)
        if pool.selection_keys is not None and entries.selection_keys is not None:
            size = pool.selection_keys.shape[-1]
            found = entries.selection_keys[:, :, None].expand(-1, -1, masks.shape[2], -1, -1)
            at = masks[..., None].expand(-1, -1, -1, -1, size)
            pool.selection_keys[rows, :, :width] = found.gather(3, at).flatten(1, 2)
        self.entries, self.history = None, []

    # -- what transformers asks of a layer ----------------------------------------------------------------------------

    def get_seq_length(self) -> int:
        """Tokens that the longest row has seen, whether kept or not; the others count as padded on the left."""
        if self.deferred is not None:
            self.settle()
        return int(self.seen.max()) if self.is_initialized else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """A mask covers all tokens so far."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """No limit to the length of the text."""
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Refused: the storage is made by the attention that fills it."""
        raise SelattnError("a layer of this cache cannot be made in advance: attention makes it with the first tokens")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values, on their way to an attention function that keeps them (`selattn.cache.handover`)."""
        return hand_over(self, key_states, value_states)

    def activate_past_recording(self) -> None:
        """From now on evictions are final only with `crop`."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last -tokens_to_remove tokens of a draft, and all that they selected and evicted."""
        self.settle()
        remove = abs(tokens_to_remove)
        if self.entries is not None:
            self.roll_back(torch.full_like(self.seen, remove))
        elif remove:
            raise SelattnError("what was evicted is gone: call activate_past_recording() before tokens to be cropped")

    def roll_back(self, remove: Tensor) -> None:
        """Take back the last `remove` [B] tokens of each row of a draft, and make final what is left."""
        assert self.entries is not None
        most = int(remove.max())
        if most >= len(self.history):
            raise SelattnError(f"only the last {len(self.history) - 1} tokens can be taken back, not {most}")
        entries, pool = self.entries, self.storage
        device, seen, length = pool.length.device, self.seen.clone(), self.length.clone()
        f, score = torch.zeros_like(entries.f), torch.zeros_like(entries.score)
        for count in set(remove.tolist()):
            then, rows = self.history[-1 - count], remove == count
            seen[rows] = then.seen[rows]
            rows = rows.to(device)
            f[rows, :, : then.f.shape[-1]] = then.f[rows]
            score[rows, :, : then.score.shape[-1]] = then.score[rows]
        left = entries.without_last(remove.to(device), f, score)
        length -= ((entries.positions >= 0) & (left.positions < 0)).sum(-1)
        pool.seen[slice(None) if self.rows is None else self.rows] = seen
        pool.length[slice(None) if self.index is None else self.index] = length
        self.put(left)

    def reset(self) -> None:
        """Forget all tokens and free the storage; budget and policy stay."""
        self.pool, self.entries, self.history, self.deferred = None, None, [], None
        self.filled = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search: the rows of the batch are chosen again."""
        self._change_rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of the batch."""
        self._change_rows(lambda x: x[indices.to(x.device)])
        if self.pool is not None and not self.pool.rows:
            self.reset()
        elif self.pool is not None and self.entries is None:
            self.shrink()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row of the batch, several times."""
        self._change_rows(lambda x: x.repeat_interleave(repeats, 0))

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        self.settle()
        if self.pool is None:
            return
        if self.reserved is not None:
            raise SelattnError("the rows of this cache were reserved: name those of a batch with only()")
        self.pool = self.pool.changed(change)
        if self.entries is not None:
            self.entries = self.entries.rows(change)
            self.history = [Moment(*map(change, moment)) for moment in self.history]


def _union(pool: Pool, position: Tensor, score: Tensor) -> Entries:
    """Heads that keep different tokens: an entry for each token that some head keeps."""
    tokens = [row[row >= 0].unique() for row in position.flatten(1)]
    size = max((len(row) for row in tokens), default=0)
    union = torch.full((len(tokens), size), -1, dtype=torch.int64, device=position.device)
    for b, row in enumerate(tokens):
        union[b, size - len(row) :] = row
    ordered, order = position.sort(-1)  # [B, P, C]
    place = torch.searchsorted(ordered, union[:, None].expand(-1, position.shape[1], -1).contiguous())
    place = place.clamp(max=position.shape[-1] - 1)
    held = (ordered.gather(-1, place) == union[:, None]) & (union[:, None] >= 0)
    at = order.gather(-1, place)  # [B, P, E] the slot of each token, where it is held
    # Whoever holds a token knows its F: the selecting head's, or as it was when that head evicted it.
    place, known = pool.by_mask(at), pool.by_mask(held)  # [B, S, O, E]
    f = pool.f.gather(-1, place).masked_fill(~known, -torch.inf).amax(2)
    selection_keys = None
    if pool.selection_keys is not None:
        stored = pool.selection_keys.unflatten(1, place.shape[1:3])  # [B, S, O, C, Ds]
        found = stored.gather(3, place[..., None].expand(-1, -1, -1, -1, stored.shape[-1]))
        holder = known.to(torch.uint8).argmax(2, keepdim=True)[..., None].expand(-1, -1, -1, -1, stored.shape[-1])
        selection_keys = found.gather(2, holder).squeeze(2)
    return Entries(
        pool.keys.gather(2, at[..., None].expand(-1, -1, -1, pool.keys.shape[-1])),
        pool.values.gather(2, at[..., None].expand(-1, -1, -1, pool.values.shape[-1])),
        union,
        torch.where(held, NEVER, 0),
        f.masked_fill(f == -torch.inf, 0.0),
        score.gather(-1, at).masked_fill(~held, 0.0),
        selection_keys,
    )


def _like(order: Tensor, storage: Tensor) -> Tensor:
    """[B, C] as an index into [B, G, C, D]."""
    return order[:, None, :, None].expand(-1, storage.shape[1], -1, storage.shape[-1])
