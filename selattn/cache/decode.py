"""One step of decoding over the slots of a layer.

By the compiled library where that can do it; else in plain PyTorch, on tensors of fixed shape, so that it compiles.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.cache import compiled
from selattn.cache.policies import Kept, victim
from selattn.cache.slots import SlotLayer
from selattn.cache.tokens import Rules, Tokens
from selattn.ops import Attention
from selattn.ops.patterns import pattern_visible
from selattn.ops.selection import constrain, step
from selattn.ops.tile import by_group, products


def decode(layer: SlotLayer, tokens: Tokens, rules: Rules) -> Attention:
    """One query: the token that leaves is overwritten, all shapes are fixed."""
    eager = not torch.compiler.is_compiling()
    seen_so_far = int(layer.seen) if eager else 0
    if eager:
        layer.make_room(seen_so_far + 1)
    assert layer.keys is not None
    assert layer.values is not None
    # Before the storage is full, an eager step leaves its empty end out; a compiled one has one shape for all steps.
    slots = layer.keys.shape[-2]
    used = min(slots, seen_so_far + 1) if eager else slots
    if eager and compiled.makes_step(layer, tokens, rules):
        output = compiled.step(layer, tokens, rules, used)
        layer.length += 1
        layer.seen += 1
        return Attention(output)
    query, now = tokens.query, layer.length[:, None]  # the new token's position
    slot = _free_slot(layer, now)
    _write(layer, tokens, slot, now)
    keys, values, position = layer.keys[..., :used, :], layer.values[..., :used, :], layer.position[..., :used]

    seen = position >= 0
    if rules.window is not None:
        seen = seen & (now[:, None] - position < rules.window)
    seen = seen.unsqueeze(-2)  # [B, P, 1, C]
    heads, orders = query.shape[1], position.shape[1]
    if orders > 1:  # each head sees what its own order keeps
        seen = seen.repeat_interleave(heads // orders, 1)
    if rules.pattern is not None:
        shown = pattern_visible(rules.pattern, now[:, None], position, heads)  # [B, 1 or H, P, C]
        if orders > 1:
            head = torch.arange(heads, device=query.device)
            shown = shown.expand(-1, heads, -1, -1)[:, head, head // (heads // orders), None]
        seen = seen & shown
    bias = torch.zeros((), dtype=layer.state.dtype, device=query.device)
    if rules.selection is not None:
        bias = -_select(layer, tokens, rules, keys, position, seen, now, used)  # [B, S, 1, C]
        if bias.shape[1] > 1:
            bias = bias.repeat_interleave(heads // bias.shape[1], 1)
    bias = bias.masked_fill(~seen, -torch.inf)
    output = _mix(layer, query, keys, values, bias, rules, used)
    layer.length += 1
    layer.seen += 1
    return Attention(output)


def _free_slot(layer: SlotLayer, now: Tensor) -> Tensor:
    """[B, P] where the new token goes: an empty slot, or that of the token which leaves."""
    orders = layer.position.shape[1]
    if layer.budget is None:
        return now.expand(-1, orders)
    score = layer.score if layer.policy.needs_weights else torch.zeros_like(layer.position, dtype=layer.state.dtype)
    reads = layer.policy.needs_selection and layer.state.shape[1]
    forgotten = layer.state[:, :, 0].amin(1, keepdim=True) if reads else torch.zeros_like(score[:, :1])
    leaves = victim(layer.policy, Kept(layer.position, score, forgotten, layer.budget))
    return torch.where(now < layer.budget, now, leaves)


def _write(layer: SlotLayer, tokens: Tokens, slot: Tensor, now: Tensor) -> None:
    """Put the new token into its slot; nothing of the old one stays."""
    assert layer.keys is not None
    assert layer.values is not None
    groups = layer.keys.shape[1]
    at = slot.expand(-1, groups)[..., None, None]
    layer.keys.scatter_(2, at.expand(-1, -1, 1, layer.keys.shape[-1]), tokens.key)
    layer.values.scatter_(2, at.expand(-1, -1, 1, layer.values.shape[-1]), tokens.value)
    here = slot[..., None]
    layer.position.scatter_(-1, here, now[:, None].expand_as(here).to(layer.position.dtype))
    layer.state.scatter_(-1, here[:, None].expand(-1, layer.state.shape[1], -1, -1), 0.0)
    if layer.policy.needs_weights:
        layer.score.scatter_(-1, here, 0.0)
    if layer.selection_keys is not None and tokens.selection_key is not None:
        stored = layer.selection_keys
        stored.scatter_(
            2, slot[:, :1, None, None].expand(-1, stored.shape[1], 1, stored.shape[-1]), tokens.selection_key
        )


def _select(
    layer: SlotLayer, tokens: Tokens, rules: Rules, keys: Tensor, position: Tensor, seen: Tensor, now: Tensor, used: int
) -> Tensor:
    """F of the query [B, S, 1, C]; what it selects is added to the layer's state."""
    selection = rules.selection
    assert selection is not None
    exact = layer.state.dtype
    if tokens.selection_query is not None and layer.selection_keys is not None:
        scale = tokens.selection_query.shape[-1] ** -0.5
        logits = products(tokens.selection_query.to(exact), layer.selection_keys[..., :used, :].to(exact)) * scale
        visible_to_it = seen.any(1, keepdim=True)
    else:
        heads = list(selection.heads)
        shared = tokens.query.shape[1] // keys.shape[1]
        chosen = keys[:, [head // shared for head in heads]]
        logits = products(tokens.query[:, heads].to(exact), chosen.to(exact)) * rules.scale_of(tokens.query)
        visible_to_it = seen if seen.shape[1] == 1 else seen[:, heads]
    allowed = visible_to_it
    if selection.protect_self:
        allowed = allowed & (position != now[:, None]).unsqueeze(-2)
    if selection.protect_first:
        allowed = allowed & (position != 0).unsqueeze(-2)
    S = constrain(logits, allowed, selection.relu, rules.strength_of(tokens.query))
    F, after = step(S, layer.state[..., :used], selection.shift)  # both [B, S, 1, C]: one order for all heads
    F = F.clone() if selection.shift else F
    layer.state[..., :used] = after
    return F


def _mix(
    layer: SlotLayer, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, rules: Rules, used: int
) -> Tensor:
    """softmax(scale Q K^T + bias) V; a policy that lives on attention weights gets them."""
    if not layer.policy.needs_weights:
        bias = bias.to(query.dtype) if query.device.type != "cpu" else bias
        return nnf.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=rules.scale, enable_gqa=True)
    exact = layer.state.dtype
    weights = (products(query.to(exact), keys.to(exact)) * rules.scale_of(query) + bias).softmax(-1)  # [B, H, 1, C]
    weights = weights.nan_to_num(0.0)  # of a query to which a pattern shows nothing
    orders = layer.position.shape[1]
    mean = weights.squeeze(-2).unflatten(1, (orders, -1)).mean(2)
    layer.score[..., :used] = layer.policy.update(layer.score[..., :used], mean)
    mixed = by_group(weights, keys.shape[1]) @ values.to(exact)
    return mixed.view(*query.shape[:-1], values.shape[-1]).to(query.dtype)
