"""One layer of the cache: at most K_l tokens for each text, in a pool where the evicted token is overwritten in place.

F at row i depends on earlier queries only, so the token to evict is known before row i attends, and its slot can take
the new one. A step of decoding touches nothing but the pool. It grows with the text until it has K_l slots, and from
then on its shapes are fixed. Several queries at once (a prompt, a draft) go through `Entries`, and what is kept of them
is put back into the slots.

The rows of the pool are independent texts. A batch is all of them, or those that `SelectiveCache.only` names.

Shapes: B rows of the batch; C slots; P independent eviction orders, 1 or the number G of key-value heads; S masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf
from transformers.cache_utils import CacheLayerMixin

from selattn.cache.policies import Policy
from selattn.cache.pool import SPARE, Pool, growth
from selattn.errors import SelattnError
from selattn.ops.eviction import NEVER, Kept
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules

FIXED = 4096  # a budget up to which a compiled step, or a pool of reserved rows, takes all slots at once


@dataclass(frozen=True)
class Entries:
    """The E tokens of a layer in the order of their positions, the form in which many queries at once are served.

    The queries are the last entries. An evicted token is marked with the row from which it is gone, so that evictions
    can be taken back until `SlotLayer.put` makes them final.
    """

    keys: Tensor  # [B, G, E, D]
    values: Tensor  # [B, G, E, Dv]
    positions: Tensor  # [B, E] int64 in the sequence, -1 for padding and empty places
    until: Tensor  # [B, P, E] int64, the row from which an entry is gone; 0 if this order does not hold it, else NEVER
    f: Tensor  # [B, S, E] F
    score: Tensor  # [B, P, E] the policy's
    selection_keys: Tensor | None  # [B, S, E, Ds] of a separate bilinear form

    @property
    def size(self) -> int:
        """E."""
        return self.positions.shape[-1]

    def append(self, keys: Tensor, values: Tensor, positions: Tensor, selection_keys: Tensor | None) -> Entries:
        """New tokens after the old ones: not selected, not scored, not gone."""
        more = positions.shape[-1]
        new_selection = selection_keys
        if self.selection_keys is not None and selection_keys is not None:
            new_selection = torch.cat([self.selection_keys, selection_keys], -2)
        return Entries(
            torch.cat([self.keys, keys], -2),
            torch.cat([self.values, values], -2),
            torch.cat([self.positions, positions], -1),
            nnf.pad(self.until, (0, more), value=NEVER),
            nnf.pad(self.f, (0, more)),
            nnf.pad(self.score, (0, more)),
            new_selection,
        )

    def without_last(self, remove: Tensor, f: Tensor, score: Tensor) -> Entries:
        """As if each row had no last `remove` [B] entries: they are empty, and evictions by them have not happened."""
        size = self.size - remove[:, None]
        index = torch.arange(self.size, device=size.device)
        return dataclasses.replace(
            self,
            positions=self.positions.masked_fill(index >= size, -1),
            until=self.until.masked_fill(self.until >= size[:, None], NEVER),
            f=f,
            score=score,
        )

    def rows(self, change: Callable[[Tensor], Tensor]) -> Entries:
        """The same change of the batch dimension for every tensor."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: change(x) for name, x in fields.items() if x is not None})

    def kept(self) -> Tensor:
        """[B, P, E] bool: the entries that are kept after the last row."""
        return (self.positions[:, None] >= 0) & (self.until >= self.size)


class Moment(NamedTuple):
    """The state of a draft before it, and after each of its tokens."""

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

    def allocate(self, tokens: Tokens, rules: Rules) -> Pool:
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
        return self.pool

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

    def wrong_batch(self, given: int) -> SelattnError:
        """The error for a batch of another size."""
        return SelattnError(
            f"this cache holds a batch of {self.batch}, not {given}: begin with a new cache, or name the "
            "rows with only()"
        )

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """[B, G, kept, D] the keys of the kept tokens; a row with fewer of them than tokens seen ends in zeros."""
        return self._kept("keys")

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """[B, G, kept, Dv]."""
        return self._kept("values")

    @property
    def position(self) -> Tensor:
        """[B, P, C] of the tokens in the slots, -1 for an empty one."""
        return self.storage.position if self.index is None else self.storage.position[self.index]

    def _kept(self, name: str) -> Tensor | None:
        if self.deferred is not None:
            self.settle()
        if self.pool is None:
            return None
        x: Tensor = getattr(self.pool if self.entries is None else self.entries, name)
        if self.entries is None:
            x = x[slice(None) if self.index is None else self.index][:, :, : self.filled]
        # Padding is seen but not stored. transformers counts it, as in `get_seq_length`.
        seen = int(self.seen.max())
        width = seen if self.budget is None else min(seen, self.budget)
        return nnf.pad(x, (0, 0, 0, max(0, width - x.shape[2])))

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the layer stores, but for a draft."""
        if self.deferred is not None:
            self.settle()
        return {} if self.pool is None else self.pool.tensors()

    @property
    def length(self) -> Tensor:
        """[B] the tokens that each row of the batch has seen."""
        assert self.pool is not None
        return self.pool.length if self.index is None else self.pool.length[self.index]

    @property
    def seen(self) -> Tensor:
        """[B] on the CPU, the same with padding."""
        assert self.pool is not None
        return self.pool.seen if self.rows is None else self.pool.seen[self.rows]

    def make_room(self, tokens: int, fixed: bool = False) -> None:
        """For `tokens`, and for some more, so that appending does not copy everything each time.

        fixed: for all that a budget of usual size can ever ask for, so that shapes stay as they are from now on.
        """
        slots = self.storage.slots
        if self.budget is not None and slots >= self.budget:
            return
        if fixed and self.budget is not None and self.budget <= FIXED:
            self.pool = self.storage.resized(self.budget)
        elif tokens > slots:
            self.pool = self.storage.resized(growth(tokens, self.budget))

    def shrink(self) -> None:
        """Free storage that no row needs, once it is the larger part."""
        taken = (self.storage.position >= 0).flatten(0, 1).any(0).nonzero()
        self.filled = int(taken[-1]) + 1 if len(taken) else 0
        wanted = growth(self.filled, self.budget)
        if self.reserved is None and self.storage.slots > 2 * wanted:
            self.pool = self.storage.resized(wanted)

    def take_slot(self, real: Tensor | None) -> tuple[int, Pool]:
        """Make room for one more token in each row that `real` [B, 1] marks; the slots that a step reads, the storage.

        Until the storage is full, an eager step leaves its empty end out; a compiled one has one shape for all steps.
        """
        eager, pool = not torch.compiler.is_compiling(), self.pool
        assert pool is not None
        slots = pool.position.shape[-1]
        if self.budget is None or slots < self.budget:
            if not eager:
                # Python's number, not a tensor's: a compiled step has it in its guards, and is compiled again to grow.
                self.filled += 1
            elif real is None:
                self.filled = max(self.filled, min(self.filled, int(self.seen.max())) + 1)
            else:
                self.filled = max(self.filled, min(self.filled + 1, int((self.length + real[:, 0]).max())), 1)
            self.make_room(self.filled, fixed=not eager)
            pool = self.storage
            slots = pool.position.shape[-1]
        elif not eager:
            self.filled = slots
        elif self.filled < slots:
            self.filled = max(self.filled, min(slots, int(self.seen.max()) + 1))
        return self.filled if eager else slots, pool

    def use(self, rows: Tensor | None) -> None:
        """From now on the batch is these rows of the pool; None: all of them."""
        self.rows = rows
        self.index = None if rows is None or self.pool is None else rows.to(self.device)

    def advance(self, count: int, real: Tensor | None) -> None:
        """Every row of the batch has seen `count` more tokens, of which `real` [B, n] are no padding."""
        more, pool = count if real is None else real.sum(-1), self.pool
        assert pool is not None
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
        for storage, x in ((pool.keys, entries.keys), (pool.values, entries.values)):
            at = order[..., None].expand(-1, storage.shape[1], -1, storage.shape[-1])
            storage[rows, :, :width] = x.gather(2, at)
        positions = entries.positions[:, None].expand_as(kept).gather(-1, order)
        pool.position[rows, :, :width] = positions.masked_fill(~held, -1).to(pool.position.dtype)
        pool.position[rows, :, width:] = -1
        masks = pool.by_mask(order)
        pool.f[rows, :, :, :width] = entries.f[:, :, None].expand(-1, -1, masks.shape[2], -1).gather(-1, masks)
        if self.policy.needs_weights:
            pool.score[rows, :, :width] = entries.score.gather(-1, order)
        if pool.selection_keys is not None and entries.selection_keys is not None:
            size = pool.selection_keys.shape[-1]
            x = entries.selection_keys[:, :, None].expand(-1, -1, masks.shape[2], -1, -1)
            at = masks[..., None].expand(-1, -1, -1, -1, size)
            pool.selection_keys[rows, :, :width] = x.gather(3, at).flatten(1, 2)
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
        """The new keys and values, on their way to an attention function that keeps them (`handed_over`)."""
        if torch.compiler.is_exporting():
            raise SelattnError("a model that was made selective is exported without a cache: pass use_cache=False")
        return _wrapped(self, key_states), _wrapped(self, value_states)

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
        placed = stored.gather(3, place[..., None].expand(-1, -1, -1, -1, stored.shape[-1]))
        holder = known.to(torch.uint8).argmax(2, keepdim=True)[..., None].expand(-1, -1, -1, -1, stored.shape[-1])
        selection_keys = placed.gather(2, holder).squeeze(2)
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


# -- on the way to the attention of a stock model ---------------------------------------------------------------------
#
# Attention modules of transformers call `cache.update(key, value, layer)` and give the result to their attention
# function, which never sees the cache. So `update` returns the new keys and values wrapped: an attention function that
# knows this cache unwraps them and gets the layer, to which it gives the queries, too.
#
#     def attention(module, query, key, value, attention_mask, scaling, **kwargs):
#         layer, key, value = handed_over(key, value)   # no layer: whole sequences, without a cache
#         result = attend(layer, Tokens(query, key, value), rules)
#
# Any other attention function gets an error: it would see nothing of what the layer keeps.

# What may be read of keys and values on their way.
READABLE = {
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad")
} | {Tensor.size, Tensor.dim, Tensor.__len__, Tensor.__repr__}


class HandedOver(Tensor):
    """A key or value on its way from a layer of the cache to the attention function."""

    layer: SlotLayer
    given: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Its shape can be asked for, and nothing can be computed with it."""
        if func in READABLE:
            return func(args[0].given, *args[1:])
        raise SelattnError(
            "this cache keeps F, and this attention function does not know it: use it with selattn's own models, or "
            "with a model that was made selective"
        )


def handed_over(key: Tensor, value: Tensor) -> tuple[SlotLayer | None, Tensor, Tensor]:
    """The layer that these keys and values came from, None if they came from no cache; and what it was given."""
    if not isinstance(key, HandedOver) or not isinstance(value, HandedOver):
        return None, key, value
    return key.layer, key.given, value.given


def _wrapped(layer: SlotLayer, x: Tensor) -> Tensor:
    made = x.detach().as_subclass(HandedOver)
    made.layer, made.given = layer, x
    return made
