"""The cache's part of the compiled library, csrc/cache: the eviction order of many queries, and a step of decoding."""

from __future__ import annotations

import ctypes
from struct import Struct
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from selattn import native
from selattn.cache.order import Order, Strip
from selattn.cache.policies import Policy
from selattn.cache.tokens import Rules, Tokens
from selattn.errors import SelattnError
from selattn.ops import Selection
from selattn.ops.cpu import DTYPES, LARGEST_HEAD

if TYPE_CHECKING:
    from selattn.cache.slots import SlotLayer


_STRIDES = ctypes.c_int64 * 3


def _ints(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int64) for name in names]


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names]


class _Eviction(ctypes.Structure):
    """`struct Eviction` of csrc/cache/structs.h. It keeps the tensors alive that it points to."""

    _fields_ = (
        *_ints("policy", "B", "H", "G", "P", "S", "n", "M", "D", "budget", "shift", "dtype"),
        *_pointers("logits", "selected", "query", "key"),
        ("query_stride", _STRIDES),
        ("key_stride", _STRIDES),
        ("scale", ctypes.c_double),
        ("strength", ctypes.c_double),
        *_ints("relu", "protect_first", "protect_self", "window"),
        *_pointers("heads", "selecting", "positions", "until", "state", "score", "history"),
    )

    def point(self, name: str, x: Tensor | None) -> None:
        """Hand a tensor over; None is a null pointer."""
        if x is None:
            return
        self.__dict__.setdefault("held", []).append(x)
        setattr(self, name, x.data_ptr())

    def rows(self, name: str, x: Tensor) -> None:
        """Hand a tensor [B, heads, rows, size] over with its strides."""
        x = x.detach()
        x = x if x.stride(3) == 1 else x.contiguous()
        self.point(name, x)
        setattr(self, f"{name}_stride", (ctypes.c_int64 * 3)(*x.stride()[:3]))


def _call(function: str, *args: Any) -> None:
    library = native.library()
    assert library is not None
    if getattr(library, function)(*args):
        raise SelattnError("the cache needs more memory than there is: use a smaller batch or smaller budgets")


def _simple(tokens: Tokens, rules: Rules) -> bool:
    """Whether the library can make the logits itself."""
    query = tokens.query
    return (
        native.library() is not None
        and query.device.type == "cpu"
        and query.dtype in DTYPES
        and max(query.shape[3], tokens.value.shape[3]) <= LARGEST_HEAD
        and rules.pattern is None
        and tokens.selection_query is None
    )


# -- the eviction order -----------------------------------------------------------------------------------------------


def makes_order(policy: Policy, tokens: Tokens, rules: Rules) -> bool:
    """Whether `order_of` can do it: a policy that the library knows, no sparse pattern, no separate form, a CPU."""
    return policy.native is not None and _simple(tokens, rules)


def order_of(
    policy: Policy,
    budget: int,
    tokens: Tokens,
    rules: Rules,
    keys: Tensor,
    positions: Tensor,
    before: Order,
    history: bool,
) -> tuple[Order, Tensor | None]:
    """The order after the tokens' queries, which are the last of the entries with these keys and positions.

    Logits are made of what is kept only, so that time follows the budget.
    """
    struct, query = _Eviction(), tokens.query
    selection = rules.selection if policy.needs_weights or policy.needs_selection else None
    heads = [] if selection is None else list(selection.heads)
    struct.H, struct.G, struct.n, struct.D = query.shape[1], keys.shape[1], query.shape[2], query.shape[3]
    struct.dtype = DTYPES[query.dtype]
    struct.rows("query", query)
    struct.rows("key", keys)
    struct.scale, struct.strength, struct.window = rules.scale_of(query), float(rules.strength), rules.window or 0
    switches = rules.selection or Selection()
    struct.relu, struct.shift = switches.relu, switches.shift
    struct.protect_first, struct.protect_self = switches.protect_first, switches.protect_self
    struct.point("heads", torch.tensor(heads, dtype=torch.int64))
    return _evict(
        struct, policy, budget, [head // (struct.H // struct.G) for head in heads], positions, before, history
    )


def order_of_strip(
    policy: Policy, budget: int, strip: Strip, before: Order, history: bool
) -> tuple[Order, Tensor | None]:
    """The same for queries whose logits and S are given."""
    struct = _Eviction()
    (struct.H, struct.G), struct.n, struct.shift = strip.heads, strip.rows, strip.shift
    struct.dtype = DTYPES[before.score.dtype]
    for name, x in (("logits", strip.logits), ("selected", strip.selected)):
        struct.point(name, None if x is None else x.detach().cpu().contiguous())
    selecting = strip.selecting if strip.selected is not None else []
    return _evict(struct, policy, budget, selecting, strip.positions, before, history)


def _evict(
    struct: _Eviction,
    policy: Policy,
    budget: int,
    selecting: list[int],
    positions: Tensor,
    before: Order,
    history: bool,
) -> tuple[Order, Tensor | None]:
    device = before.score.device
    until = before.until.cpu().clone(memory_format=torch.contiguous_format)  # written to, like state and score
    state, score = (x.detach().cpu().contiguous().clone() for x in (before.state, before.score))
    struct.policy, struct.budget, struct.S = policy.native, budget, len(selecting)
    struct.B, struct.P, struct.M = until.shape
    scores = score.new_empty(struct.n, *score.shape) if history else None
    follows = selecting if struct.P > 1 else [0] * len(selecting)
    struct.point("selecting", torch.tensor(follows, dtype=torch.int64))
    struct.point("positions", positions.cpu().contiguous())
    for name, x in (("until", until), ("state", state), ("score", score), ("history", scores)):
        struct.point(name, x)
    _call("selattn_evict", ctypes.byref(struct), ctypes.c_int64(torch.get_num_threads()))
    moved = Order(until.to(device), state.to(device), score.to(device))
    return moved, None if scores is None else scores.to(device)


# -- one step of decoding ---------------------------------------------------------------------------------------------


def makes_step(layer: SlotLayer, tokens: Tokens, rules: Rules) -> bool:
    """Whether `step` can do it: also one selection mask, one order for all heads, and no scores to keep."""
    policy = layer.policy
    known = not policy.evicts or layer.budget is None or policy.native is not None
    one = layer.position.shape[1] == 1 and rules.masks(tokens) <= 1
    return known and one and not policy.needs_weights and _simple(tokens, rules)


# `struct Step` of csrc/cache/structs.h, packed at once: to set its fields one by one takes longer than a small step.
_STEP = Struct("11q 3P 9q 5P 2d 6q P")


def step(layer: SlotLayer, tokens: Tokens, rules: Rules, used: int) -> Tensor:
    """The output [B, H, 1, Dv] of one query over the first `used` slots; the layer's tensors are written to."""
    keys, values, position, state, length = layer.keys, layer.values, layer.position, layer.state, layer.length
    assert keys is not None
    assert values is not None
    assert all(x.is_contiguous() for x in (keys, values, position, state, length))
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (tokens.query, tokens.key, tokens.value))
    batch, heads, _, size = query.shape
    groups, slots, value_size = values.shape[1:]
    out = query.new_empty(batch, heads, 1, value_size)
    selection = rules.selection
    switches = selection or Selection()
    packed = _STEP.pack(
        *(layer.policy.native or 0, batch, heads, groups, slots, size, value_size, layer.budget or 0, used),
        *(DTYPES[query.dtype], torch.get_num_threads()),
        *(query.data_ptr(), key.data_ptr(), value.data_ptr()),
        *(*query.stride()[:3], *key.stride()[:3], *value.stride()[:3]),
        *(keys.data_ptr(), values.data_ptr(), position.data_ptr()),
        *(0 if selection is None else state.data_ptr(), length.data_ptr()),
        *(rules.scale_of(query), float(rules.strength)),
        *(switches.heads[0], switches.relu, switches.protect_first, switches.protect_self, switches.shift),
        *(rules.window or 0, out.data_ptr()),
    )
    _call("selattn_decode", packed)
    return out
