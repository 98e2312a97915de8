"""One forward pass, decided once for every model: cache and budgets, whole sequences or a step, and what is wanted.

`begin` decides; each layer then calls `Pass.attend`. Our decoder, stock models and T5 differ in what they hand over.

Shapes: B rows, N tokens, P eviction orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.cache import NEVER, Budgets, Policy, SelectiveCache, SlotLayer, attend, defer, evictions, in_force
from selattn.errors import SelattnError
from selattn.models.evicting import Evicting, selective_cache
from selattn.models.inputs import Places, next_places, over_tokens, refuse_several, several, whole_places
from selattn.ops import Attention, AuxRequest, Backend, Sequences, checks
from selattn.ops.attention import attend_whole
from selattn.ops.operator import in_transform
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules


class Told(NamedTuple):
    """What callers tell of the tokens of a batch, as transformers has it."""

    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    cu_seq_lens_q: Tensor | None = None
    seq_idx: Tensor | None = None


@dataclass
class Pass:
    """What all layers of one forward pass share, and what they found.

    No tuple: FSDP and the like rebuild tuples of arguments, and what layers find would be lost.

    Attributes:
        places: the sequences over all tokens, and the positions of the new ones.
        cache: that the new tokens continue or fill; None for none.
        whole: the sequences begin here: attention needs no cache, though it may fill one.
        budgets: K_l of each layer without a cache, which has its own.
        policy: which token is evicted.
        rules: of all layers: selection, strength, tau. A layer adds its own.
        wanted: beside the output.
        evictions: whether `evicted_at` is wanted.
        backend: which implementation runs.
        rotary: of the decoder, cosines and sines at the positions.
        found: what each layer of a stock model gave beside the output, by its number.
        differentiates: whether gradients are wanted.
    """

    places: Places
    cache: SelectiveCache | None
    whole: bool
    budgets: tuple[int | None, ...] | None
    policy: Policy
    rules: Rules
    wanted: AuxRequest
    evictions: bool
    backend: str | Backend
    rotary: tuple[Tensor, Tensor] | None = None
    found: dict[int, Attention] = field(default_factory=dict)
    differentiates: bool = field(default_factory=torch.is_grad_enabled)

    @property
    def sequences(self) -> Sequences | None:
        """Over all tokens; None for one in each row and no padding."""
        return self.places.sequences

    @property
    def real(self) -> Tensor | None:
        """[B, N] which of the new tokens are no padding, for a cache; None for all."""
        return None if self.cache is None else self.places.real

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Pass:
        """The same on another device, as accelerate asks for where layers lie on several; `found` is shared."""

        def moved(x: Any) -> Any:
            return None if x is None else x.to(device)

        sequences, positions, real = self.places
        places = Places(moved(sequences), positions.to(device, non_blocking=non_blocking), moved(real))
        rotary = None if self.rotary is None else (moved(self.rotary[0]), moved(self.rotary[1]))
        return replace(self, places=places, rotary=rotary)

    def attend(self, layer: int, slots: SlotLayer | None, tokens: Tokens, rules: Rules) -> Attention:
        """The layer's tokens attend: to what a cache keeps, or whole sequences to themselves.

        Args:
            layer: its number.
            slots: of the cache; None without one.
            tokens: `real` is set here.
            rules: the layer's.
        """
        if slots is not None and not self.whole:
            result = attend(slots, tokens._replace(real=self.real), rules, self.wanted, self.backend)
        else:
            budget = slots.budget if slots is not None else None if self.budgets is None else self.budgets[layer]
            gone = None
            if in_force(budget, self.policy):
                gone = evictions(tokens, self.sequences, rules, budget, self.policy, self.backend)
            result = attend_whole(tokens, self.sequences, rules, self.wanted, self.backend, gone)
            if slots is not None:
                defer(slots, tokens._replace(real=self.real), rules, self.backend)
        return result

    def over_tokens(self, parts: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """[B, H, N, tokens so far] of each layer: what came from a cache has a column for each position it holds."""
        if self.cache is None or self.whole:
            return tuple(parts)
        seen = (self.sequences, self.cache.layers[0].length, self.cache.get_seq_length())
        return tuple(over_tokens(each, *seen) for each in parts)


def evicted_rows(each: Iterable[Tensor | None], x: Tensor) -> tuple[Tensor, ...]:
    """[B, P, N] of each layer, the row from which each token of x [B, N, ...] is gone; NEVER if it stays."""
    never = torch.full((x.shape[0], 1, x.shape[1]), NEVER, dtype=torch.int64, device=x.device)
    return tuple(never if at is None else at for at in each)


def begin(
    model: Evicting,
    shape: tuple[int, int],
    device: torch.device,
    told: Told,
    rules: Rules,
    *,
    strength: float | Tensor | None = None,
    cache: Any = None,
    use_cache: bool | None = None,
    budgets: Budgets | int | Sequence[int] | None = None,
    policy: str | Policy | None = None,
    output_f: bool = False,
    output_kept: bool = False,
    output_evictions: bool = False,
    output_attentions: bool | None = None,
    learns: bool = False,
    backend: str | Backend = "auto",
) -> Pass:
    """Decide how a pass runs.

    Args:
        model: whose config, budgets and policy apply unless others are given.
        shape: B, N of the new tokens.
        device: of the tokens.
        told: masks, positions and lengths.
        rules: selection, strength and tau of all layers.
        strength: replaces that of the rules.
        cache: that the tokens continue.
        use_cache: whether to make one; None for what the config says, where there can be one.
        budgets, policy: replace those of the model.
        output_f, output_kept, output_evictions, output_attentions: what is wanted beside the output.
        learns: whether the memory term is wanted, of a text that begins here.
        backend: which implementation runs.
    """
    if strength is not None:
        checks.strength(strength)
        rules = rules._replace(strength=strength)
    cache = selective_cache(cache)
    # A compiled step has one graph for all lengths, so it asks the cache for none.
    compiling = torch.compiler.is_compiling()
    one_step = compiling and cache is not None and shape[1] == 1 and cache.layers[0].is_initialized
    past = None if one_step else 0 if cache is None else cache.get_seq_length()
    if cache is not None and past != 0:
        places = next_places(shape, cache, past, *told)
    else:
        places = whole_places(shape, *told, device)
    # Only whole sequences have gradients, and can say what was kept of them: then a cache is filled afterwards.
    kept = output_kept or (learns and past == 0)
    whole = past == 0 and (torch.is_grad_enabled() or kept or output_evictions)
    packed = told.cu_seq_lens_q is not None or told.seq_idx is not None
    packed = packed or (told.position_ids is not None and shape[1] > 1)
    if cache is None and use_cache is None:
        use_cache = _makes_cache(model, places.sequences, packed)
    if cache is not None or use_cache:
        if (kept or output_evictions) and not whole:
            raise SelattnError(
                "kept fractions, the memory term and evictions are told of whole sequences: leave the cache out"
            )
        if model.recomputes():
            raise SelattnError("gradient checkpointing runs a layer twice, and would fill a cache twice: leave one out")
        if packed:
            refuse_several(places.sequences)
        cache = model.fitting_cache(cache, budgets, policy)
    # A cache owns its budgets and its policy.
    limits, chosen = model.limits(budgets, policy) if cache is None else (None, cache.policy)
    wanted = AuxRequest(f=output_f, memory=kept, weights=bool(output_attentions))
    return Pass(places, cache, cache is None or whole, limits, chosen, rules, wanted, output_evictions, backend)


def _makes_cache(model: Evicting, sequences: Sequences | None, packed: bool) -> bool:
    """Whether a pass makes a cache that nobody asked for: not where there cannot be one."""
    if not model.wants_cache() or model.recomputes():
        return False
    if torch.compiler.is_exporting() or in_transform():
        return False
    if sequences is None or not packed:
        return True
    return not torch.compiler.is_compiling() and not bool(several(sequences))
