"""One layer of the cache: storage for at most K_l tokens, in which the token that leaves is overwritten in place.

F at row i depends on earlier queries only, so the token to leave is known before row i attends, and its slot can take
the new one. A step of decoding touches nothing but these tensors. They grow with the text until they have K_l slots,
and from then on their shapes are fixed. Several queries at once (a prompt, a draft) go through `Entries`, and what is
kept of them is put back into the slots.

The rows of the batch are independent texts: each has its own length, and one may take no part while others go on.
`selattn.cache.rows` empties, replaces and joins rows.

Shapes: B rows; C slots; P independent eviction orders, 1 or the number G of key-value heads; S selection masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf
from transformers.cache_utils import CacheLayerMixin

from selattn.cache.entries import Entries
from selattn.cache.handover import hand_over
from selattn.cache.policies import Policy
from selattn.errors import SelattnError
from selattn.ops.order import NEVER, Kept, masks_of_orders, smallest_f, stands_alone
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules

SPARE = 8  # slots that a layer which grows has for coming tokens, at least
SHARE = 8  # beyond that, one for so many tokens: a step reads all of them, so copying them all that seldom costs little
FIXED = 4096  # a budget up to which a compiled step takes all slots at once: else it would be made anew too often
SLOTTED = ("keys", "values", "position", "f", "score", "selection_keys")  # what there is of each slot


class Moment(NamedTuple):
    """What a draft goes back to: before it, and after each of its tokens."""

    f: Tensor  # [B, S, E] F
    score: Tensor  # [B, P, E]
    seen: Tensor  # [B]


class SlotLayer(CacheLayerMixin):
    """At most `budget` tokens (None: all), and what the policy knows of them."""

    is_croppable = True
    is_sliding = False

    def __init__(self, budget: int | None, policy: Policy) -> None:
        super().__init__()
        self.budget = budget
        self.policy = policy
        self.entries: Entries | None = None  # while a draft may be taken back
        self.history: list[Moment] = []  # before a draft and after each of its tokens
        self.record_past = False
        self.active: Tensor | None = None  # [B] bool on the CPU: the rows that take part; None: all
        self.deferred: Callable[[SlotLayer], Any] | None = None  # fills this layer, as soon as somebody looks into it
        self.selection_keys: Tensor | None = None
        self.heads = 1  # query heads
        self.stands_alone = False  # each order and its masks have nothing to do with the others
        self.filled = 0  # slots, from the first on, of which a row may have taken the last

    # -- storage ------------------------------------------------------------------------------------------------------

    def allocate(self, tokens: Tokens, rules: Rules) -> None:
        """Empty slots for tokens like these."""
        key, value, selection_key = tokens.key, tokens.value, tokens.selection_key
        batch, groups = key.shape[:2]
        orders, masks = groups if self.policy.per_head else 1, rules.masks(tokens.selection_query)
        separate, heads = tokens.selection_query is not None, tokens.query.shape[1]
        self.heads = heads
        self.stands_alone = stands_alone(rules, separate, masks, orders, heads)
        own = 1 if self.stands_alone else orders
        slots = 0 if self.budget is None else min(self.budget, SPARE)
        exact = torch.float64 if key.dtype == torch.float64 else torch.float32
        self.dtype, self.device = key.dtype, key.device
        self.keys = key.new_zeros(batch, groups, slots, key.shape[-1])
        self.values = value.new_zeros(batch, groups, slots, value.shape[-1])
        self.position = torch.full((batch, orders, slots), -1, dtype=torch.int32, device=key.device)
        self.f = torch.zeros(batch, masks, own, slots, dtype=exact, device=key.device)
        scored = slots if self.policy.needs_weights else 0
        self.score = torch.zeros(batch, orders, scored, dtype=exact, device=key.device)
        if selection_key is not None:
            self.selection_keys = selection_key.new_zeros(batch, masks * own, slots, selection_key.shape[-1])
        self.length = torch.zeros(batch, dtype=torch.int64, device=key.device)  # real tokens seen, of each row
        self.seen = torch.zeros(batch, dtype=torch.int64, device="cpu")  # the same, padding included
        self.filled = 0
        self.is_initialized = True

    @property
    def slots(self) -> int:
        """How many slots a row has, C."""
        assert self.keys is not None
        return self.keys.shape[-2]

    @property
    def grows(self) -> bool:
        """Whether the storage is still smaller than the budget."""
        assert self.keys is not None
        return self.budget is None or self.keys.shape[-2] < self.budget

    def make_room(self, tokens: int, fixed: bool = False) -> None:
        """For `tokens`, and for some more, so that appending does not copy everything each time.

        fixed: for all that a budget of usual size can ever ask for, so that shapes stay as they are from now on.
        """
        assert self.keys is not None
        assert self.values is not None
        slots = self.keys.shape[-2]
        at_once = fixed and self.budget is not None and self.budget <= FIXED
        if not self.grows or (tokens <= slots and not at_once):
            return
        self.resize(self.budget if at_once and self.budget is not None else growth(tokens, self.budget))

    def resize(self, slots: int) -> None:
        """Room for exactly so many tokens in each row; what lies behind is cut off."""
        for name in SLOTTED:
            x = getattr(self, name)
            if x is not None and (name != "score" or self.policy.needs_weights):
                setattr(self, name, resized(name, x, slots))

    def shrink(self) -> None:
        """Free storage that no row needs, once it is the larger part: rows that come and go must not copy it always."""
        taken = (self.position >= 0).flatten(0, 1).any(0).nonzero()
        self.filled = int(taken[-1]) + 1 if len(taken) else 0
        wanted = growth(self.filled, self.budget)
        if self.slots > 2 * wanted:
            self.resize(wanted)

    def filled_after(self, real: Tensor | None) -> int:
        """The slots that a row has taken at most after one more token for each row that `real` [B, 1] says."""
        if real is None:
            return self.filled + 1
        longest = int((self.length + real[:, 0]).max())  # a row that sits out takes none
        return min(self.filled + 1, max(self.filled, longest, 1))

    def taking_part(self, tokens: Tokens) -> Tensor:
        """[B, n] bool: which of these tokens are real, none in a row that sits out."""
        assert self.active is not None
        active = self.active.to(tokens.key.device)[:, None]
        return active.expand(-1, tokens.key.shape[2]) if tokens.real is None else tokens.real & active

    def advance(self, count: int, real: Tensor | None) -> None:
        """Every row that takes part has seen `count` more tokens, of which `real` [B, n] are no padding."""
        self.length += count if real is None else real.sum(-1)
        self.seen += count if self.active is None else count * self.active

    def drop_early(self) -> None:
        """Empty the slots of the tokens that the policy lets go although there is room."""
        if not self.position.numel():
            return
        score = self.score if self.policy.needs_weights else torch.zeros_like(self.position, dtype=self.f.dtype)
        reads = self.policy.needs_f and self.f.shape[1]
        f = self.smallest_f() if reads else torch.zeros_like(score[:, :1])
        leaves = self.policy.leaves(Kept(self.position, score, f, NEVER if self.budget is None else self.budget))
        if leaves is not None:
            if self.active is not None:
                leaves = leaves & self.active.to(leaves.device)[:, None, None]
            self.position.masked_fill_(leaves & (self.position >= 0), -1)
        if not torch.compiler.is_compiling():  # what is empty is taken again before the storage grows
            last = torch.arange(1, self.position.shape[-1] + 1, device=self.position.device)
            self.filled = int(last.where(self.position >= 0, 0).max())

    def smallest_f(self) -> Tensor:
        """[B, 1 or P, C] F of each slot, the smallest of the masks that the heads of its order follow."""
        orders = self.position.shape[1]
        if self.f.shape[2] == 1:
            return smallest_f(self.f[:, :, 0], orders, self.heads)
        each = enumerate(masks_of_orders(orders, self.f.shape[1], self.heads))
        return torch.stack([self.f[:, masks, p].amin(1) for p, masks in each], 1)

    @torch.compiler.disable
    def settle(self) -> None:
        """Take what was deferred."""
        fill, self.deferred = self.deferred, None
        if fill is not None:
            with torch.no_grad():
                fill(self)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the layer holds, but for a draft."""
        self.settle()
        if not self.is_initialized:
            return {}
        return {name: x for name in (*SLOTTED, "length", "seen") if (x := getattr(self, name)) is not None}

    # -- many queries at once -----------------------------------------------------------------------------------------

    def take(self) -> Entries:
        """The tokens, in the order of their positions; empty places come first."""
        if self.entries is not None:
            return self.entries
        assert self.keys is not None
        assert self.values is not None
        used = min(self.keys.shape[-2], int(self.seen.max()))
        position = self.position[..., :used].long()
        score = self.score[..., :used] if self.policy.needs_weights else self.f.new_zeros(position.shape)
        if position.shape[1] == 1:
            order = position[:, 0].argsort(-1)  # [B, C]
            return Entries(
                self.keys.gather(2, _like(order, self.keys)),
                self.values.gather(2, _like(order, self.values)),
                position[:, 0].gather(-1, order),
                torch.where(position >= 0, NEVER, 0).gather(-1, order[:, None]),
                self.f[:, :, 0].gather(-1, order[:, None].expand(-1, self.f.shape[1], -1)),
                score.gather(-1, order[:, None]),
                None
                if self.selection_keys is None
                else self.selection_keys.gather(2, _like(order, self.selection_keys)),
            )
        return self._union(position, score)

    def _union(self, position: Tensor, score: Tensor) -> Entries:
        """Heads that keep different tokens: an entry for each token that some head keeps."""
        assert self.keys is not None
        assert self.values is not None
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
        # Whoever holds a token knows its F: the selecting head's, or as it was when that head let it go.
        place, known = self._by_mask(at), self._by_mask(held)  # [B, S, O, E]
        f = self.f.gather(-1, place).masked_fill(~known, -torch.inf).amax(2)
        selection_keys = None
        if self.selection_keys is not None:
            stored = self.selection_keys.unflatten(1, place.shape[1:3])  # [B, S, O, C, Ds]
            found = stored.gather(3, place[..., None].expand(-1, -1, -1, -1, stored.shape[-1]))
            holder = known.to(torch.uint8).argmax(2, keepdim=True)[..., None].expand(-1, -1, -1, -1, stored.shape[-1])
            selection_keys = found.gather(2, holder).squeeze(2)
        return Entries(
            self.keys.gather(2, at[..., None].expand(-1, -1, -1, self.keys.shape[-1])),
            self.values.gather(2, at[..., None].expand(-1, -1, -1, self.values.shape[-1])),
            union,
            torch.where(held, NEVER, 0),
            f.masked_fill(f == -torch.inf, 0.0),
            score.gather(-1, at).masked_fill(~held, 0.0),
            selection_keys,
        )

    def _by_mask(self, x: Tensor) -> Tensor:
        """[B, P, E] of orders as [B, S, O, E], like F: of the mask's own order, or of all."""
        masks, orders = self.f.shape[1], x.shape[1]
        if self.f.shape[2] == orders:
            return x[:, None].expand(-1, masks, -1, -1)
        return x[:, [s * orders // masks for s in range(masks)], None]

    def put(self, entries: Entries) -> None:
        """Make evictions final: what is kept goes into the slots, everything else is gone."""
        kept = entries.kept()
        self.filled = int(kept.sum(-1).max())
        self.make_room(self.filled)
        assert self.keys is not None
        assert self.values is not None
        slots = self.keys.shape[-2]
        index = torch.arange(entries.size, device=kept.device)
        order = torch.where(kept, index, entries.size).argsort(-1)[..., :slots]  # [B, P, <= C], the kept ones first
        held = kept.gather(-1, order)
        width = order.shape[-1]
        for storage, found in ((self.keys, entries.keys), (self.values, entries.values)):
            at = order[..., None].expand(-1, storage.shape[1], -1, storage.shape[-1])
            storage[..., :width, :] = found.gather(2, at)
        self.position[..., :width] = entries.positions[:, None].expand_as(kept).gather(-1, order).masked_fill(~held, -1)
        each = self._by_mask(order)
        self.f[..., :width] = entries.f[:, :, None].expand(-1, -1, each.shape[2], -1).gather(-1, each)
        if self.policy.needs_weights:
            self.score[..., :width] = entries.score.gather(-1, order)
        if self.selection_keys is not None and entries.selection_keys is not None:
            size = self.selection_keys.shape[-1]
            found = entries.selection_keys[:, :, None].expand(-1, -1, each.shape[2], -1, -1)
            at = each[..., None].expand(-1, -1, -1, -1, size)
            self.selection_keys[..., :width, :] = found.gather(3, at).flatten(1, 2)
        self.position[..., width:] = -1
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
        entries, device = self.entries, self.length.device
        f, score = torch.zeros_like(entries.f), torch.zeros_like(entries.score)
        for count in set(remove.tolist()):
            then, rows = self.history[-1 - count], remove == count
            self.seen[rows] = then.seen[rows]
            rows = rows.to(device)
            f[rows, :, : then.f.shape[-1]] = then.f[rows]
            score[rows, :, : then.score.shape[-1]] = then.score[rows]
        left = entries.without_last(remove.to(device), f, score)
        self.length -= ((entries.positions >= 0) & (left.positions < 0)).sum(-1)
        self.put(left)

    def reset(self) -> None:
        """Forget all tokens and free the storage; budget and policy stay."""
        self.entries, self.history, self.selection_keys, self.deferred = None, [], None, None
        self.keys = self.values = None
        self.filled, self.is_initialized = 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search: the rows of the batch are chosen anew."""
        self._rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of the batch."""
        self._rows(lambda x: x[indices.to(x.device)])
        if self.is_initialized and not len(self.length):
            self.reset()
        elif self.is_initialized and self.entries is None:
            self.shrink()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row of the batch, several times."""
        self._rows(lambda x: x.repeat_interleave(repeats, 0))

    def _rows(self, change: Callable[[Tensor], Tensor]) -> None:
        self.settle()
        if not self.is_initialized:
            return
        for name, tensor in self.tensors().items():
            setattr(self, name, change(tensor))
        if self.entries is not None:
            self.entries = self.entries.rows(change)
            self.history = [Moment(*map(change, moment)) for moment in self.history]


def resized(name: str, x: Tensor, slots: int) -> Tensor:
    """One of `SLOTTED` with another number of slots: new ones are empty, and what lies behind the last is cut off."""
    features = name in ("keys", "values", "selection_keys")
    more = slots - x.shape[-2 if features else -1]
    # A copy, so that what is cut off is freed; and dense, which the compiled step needs.
    return nnf.pad(x, (0, 0, 0, more) if features else (0, more), value=-1 if name == "position" else 0).contiguous()


def growth(tokens: int, budget: int | None) -> int:
    """The slots of a layer that needs `tokens`."""
    wanted = tokens + max(SPARE, tokens // SHARE)
    return wanted if budget is None else min(wanted, budget)


def _like(order: Tensor, storage: Tensor) -> Tensor:
    """[B, C] as an index into [B, G, C, D]."""
    return order[:, None, :, None].expand(-1, storage.shape[1], -1, storage.shape[-1])
