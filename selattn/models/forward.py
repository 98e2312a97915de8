"""One forward pass, decided once for every model: cache and budgets, whole sequences or a step, and what it returns.

`begin` decides; each layer then calls `Pass.attend`. Our decoder, stock models and T5 differ in what they pass to it.

Shapes: B rows, N tokens, P eviction orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from selattn.cache import (
    NEVER,
    Budgets,
    Policy,
    SelectiveCache,
    SlotLayer,
    attend,
    defer,
    evictions,
    in_force,
    make_policy,
)
from selattn.errors import SelattnError
from selattn.models.inputs import Places, Told, next_places, over_tokens, refuse_several, several, whole_places
from selattn.ops import Attention, AuxRequest, Backend, Sequences, checks
from selattn.ops.attention import attend_whole
from selattn.ops.autograd import in_transform
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules

EVICTION = ("cache_budgets", "cache_policy")  # the arguments of `forward` and `generate`


class PassOptions(TypedDict, total=False):
    """Arguments of every model's `forward` that transformers' models lack.

    Attributes:
        output_f: return F of each layer (N x N each).
        output_kept: return the kept fraction of each layer; whole sequences only.
        output_evictions: return the row from which each token is evicted, for each layer; whole sequences only.
        selection_strength: replaces the config's, for a ramp during training.
        cache_budgets: K_l, how many tokens each layer may keep; replaces the config's. A cache has its own.
        cache_policy: which token is evicted when a layer is full, a name or a policy; replaces the config's. A cache
            has its own.
    """

    output_f: bool
    output_kept: bool
    output_evictions: bool
    selection_strength: float | Tensor | None
    cache_budgets: Budgets | int | Sequence[int] | None
    cache_policy: str | Policy | None


OPTIONS = tuple(PassOptions.__annotations__)


@dataclass
class Pass:
    """Shared by all layers of one forward pass, with the results that they return besides their output.

    A dataclass and no tuple: FSDP rebuilds tuples of arguments, which would lose `results`.

    Attributes:
        places: the sequences over all tokens, and the positions of the new ones.
        cache: which the new tokens extend or fill; None without one.
        whole: the sequences begin here: attention needs no cache, though it may fill one.
        budgets: K_l of each layer without a cache, which has its own.
        policy: which token is evicted.
        rules: of all layers: selection, strength, tau. A layer adds its own.
        wanted: beside the output.
        evictions: whether to return `evicted_at`.
        backend: which implementation runs.
        rotary: of the decoder, cosines and sines at the positions.
        results: what each layer of a stock model returned beside its output, by its number.
        differentiates: whether gradients are enabled.
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
    results: dict[int, Attention] = field(default_factory=dict)
    differentiates: bool = field(default_factory=torch.is_grad_enabled)

    @property
    def sequences(self) -> Sequences | None:
        """Over all tokens; None for one in each row and no padding."""
        return self.places.sequences

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Pass:
        """The same on another device, as accelerate asks for where layers lie on several; `results` is shared."""

        def moved(x: Any) -> Any:
            return None if x is None else x.to(device)

        sequences, positions, real = self.places
        places = Places(moved(sequences), positions.to(device, non_blocking=non_blocking), moved(real))
        rotary = None if self.rotary is None else (moved(self.rotary[0]), moved(self.rotary[1]))
        return replace(self, places=places, rotary=rotary)

    def attend(self, layer: int, slots: SlotLayer | None, tokens: Tokens, rules: Rules) -> Attention:
        """The tokens of a layer attend: to what a cache keeps, or whole sequences to themselves.

        Args:
            layer: its number.
            slots: of the cache; None without one.
            tokens: `real` is set here.
            rules: the layer's.
        """
        if slots is not None and not self.whole:
            return attend(slots, tokens._replace(real=self.places.real), rules, self.wanted, self.backend)
        budget = slots.budget if slots is not None else None if self.budgets is None else self.budgets[layer]
        evicted_at = None
        if in_force(budget, self.policy):
            evicted_at = evictions(tokens, self.sequences, rules, budget, self.policy, self.backend)
        result = attend_whole(tokens, self.sequences, rules, self.wanted, self.backend, evicted_at)
        if slots is not None:
            defer(slots, tokens._replace(real=self.places.real), rules, self.backend)
        return result

    def over_tokens(self, parts: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """[B, H, N, tokens so far] of each layer: results from a cache have a column for each position it holds."""
        if self.cache is None or self.whole:
            return tuple(parts)
        seen = (self.sequences, self.cache.layers[0].length, self.cache.get_seq_length())
        return tuple(over_tokens(each, *seen) for each in parts)


def evicted_rows(each: Iterable[Tensor | None], x: Tensor) -> tuple[Tensor, ...]:
    """[B, P, N] of each layer, the row from which each token of x [B, N, ...] is evicted; NEVER if it stays."""
    never = torch.full((x.shape[0], 1, x.shape[1]), NEVER, dtype=torch.int64, device=x.device)
    return tuple(never if at is None else at for at in each)


class Evicting:
    """A model with budgets. A subclass says which are its own, and how many layers it has."""

    def own_eviction(self) -> tuple[Budgets | None, str | Policy]:
        """Budgets and policy of the model's config."""
        raise NotImplementedError

    @property
    def selects(self) -> bool:
        """Whether any layer selects."""
        raise NotImplementedError

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and all layers: fewer run where transformers drafts with the first layers alone."""
        raise NotImplementedError

    def wants_cache(self) -> bool:
        """Whether a pass makes a cache unless it is told."""
        raise NotImplementedError

    def recomputes(self) -> bool:
        """Whether the layers run twice, by gradient checkpointing: then there cannot be a cache."""
        return False

    def eviction(
        self, budgets: Budgets | int | Sequence[int] | None, policy: str | Policy | None
    ) -> tuple[Budgets | None, Policy]:
        """Budgets and policy in force: the given ones, or else the model's own."""
        own_budgets, own_policy = self.own_eviction()
        chosen = Budgets.of(budgets) or own_budgets
        running, layers = self.layer_counts()
        if chosen is not None and running < layers:
            chosen = Budgets(chosen.for_layers(layers)[:running])
        made = make_policy(own_policy if policy is None else policy)
        check_selects(chosen, made, self.selects)
        return chosen, made

    def limits(
        self, budgets: Budgets | int | Sequence[int] | None, policy: str | Policy | None
    ) -> tuple[tuple[int, ...] | None, Policy]:
        """The same for a pass without a cache: K_l of each layer."""
        chosen, made = self.eviction(budgets, policy)
        return None if chosen is None else chosen.for_layers(self.layer_counts()[0]), made

    def new_cache(
        self, budgets: Budgets | int | Sequence[int] | None = None, policy: str | Policy | None = None
    ) -> Any:
        """An empty cache for this model, with the model's budgets and policy unless others are given.

        The cache owns them from then on: `forward` and `generate` need not be told again.
        """
        return self._own_cache(budgets, policy)

    def _own_cache(self, budgets: Budgets | int | Sequence[int] | None, policy: str | Policy | None) -> SelectiveCache:
        cache = SelectiveCache(self.layer_counts()[0], *self.eviction(budgets, policy))
        cache.made_for = (budgets, policy)
        return cache

    def fitting_cache(
        self,
        cache: SelectiveCache | None,
        budgets: Budgets | int | Sequence[int] | None,
        policy: str | Policy | None,
    ) -> SelectiveCache:
        """The given cache, if it fits, or a new one."""
        if cache is None:
            return self._own_cache(budgets, policy)
        layers = self.layer_counts()[0]
        if len(cache.layers) != layers:
            raise SelattnError(
                f"this cache has {len(cache.layers)} layers and the model {layers}: make one with new_cache()"
            )
        if not cache.layers[0].is_initialized:
            check_selects(cache.budgets, cache.policy, self.selects)
        if (budgets, policy) == cache.made_for or (budgets is None and policy is None):
            return cache  # at every step of `generate()`
        other = budgets is not None and self.eviction(budgets, policy)[0] != cache.budgets
        if other or (policy is not None and not _is_policy(cache.policy, policy)):
            raise SelattnError(
                f"this cache was made for {cache.budgets or 'no budgets'} and the policy {cache.policy.name!r}: "
                "leave cache_budgets and cache_policy out, the cache has them, or begin with a new cache"
            )
        return cache


class PrunedGeneration(Evicting):
    """`generate()` begins with a cache that keeps F. It stands before `GenerationMixin`."""

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Budgets and policy may stand in a `GenerationConfig`, too; arguments of `generate()` go before it."""
        given = {name: kwargs.pop(name) for name in EVICTION if name in kwargs}
        chosen, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)  # type: ignore[misc]
        for name in EVICTION:
            value = given.get(name)
            if value is None and model_kwargs.get("past_key_values") is None:  # a cache that is given has its own
                value = getattr(chosen, name, None)
            if value is not None:
                model_kwargs[name] = value
        layers = self.layer_counts()[0]
        last = chosen.assistant_early_exit
        if last is not None and (isinstance(last, bool) or not isinstance(last, int) or not 0 < last <= layers):
            raise SelattnError(f"assistant_early_exit must be a layer, 1 to {layers} here, not {last!r}")
        return chosen, model_kwargs

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        """transformers reads the names of a `forward`, which takes these as keywords."""
        rest = {name: value for name, value in model_kwargs.items() if name not in OPTIONS}
        super()._validate_model_kwargs(rest)  # type: ignore[misc]  # declared for a protocol of transformers' own

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. From a generation config that was made from a model's config transformers saves only
        what it knows itself, and budgets are not among it.
        """
        own: Any = getattr(self, "generation_config", None)
        if any(getattr(own, name, None) is not None for name in EVICTION):
            own._from_model_config = False
        return super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Begin with a cache that keeps F; transformers' default would lose it."""
        if generation_config.cache_implementation is not None:
            raise SelattnError(
                f"cache_implementation={generation_config.cache_implementation!r} does not keep F: leave it out"
            )
        budgets, policy = (model_kwargs.get(name) for name in EVICTION)
        own = model_kwargs.get("past_key_values") is None
        if own and policy is not None and not generation_config.is_assistant:
            chosen, made = self.eviction(budgets, policy)
            if chosen is None and made.evicts and not made.leaves_early:
                raise SelattnError(
                    f"the policy {made.name!r} would change nothing: without cache_budgets nothing is evicted"
                )
        if generation_config.use_cache is False:
            return
        if generation_config.is_assistant:
            # It is told what the main model is told. A list of budgets may be for other layers than its own.
            for name in EVICTION:
                model_kwargs.pop(name, None)
            listed = Budgets.of(budgets)
            if listed is not None and not isinstance(listed.tokens, int):
                budgets = listed if len(listed.tokens) == self.layer_counts()[1] else None
        if own:
            model_kwargs["past_key_values"] = self.new_cache(budgets, policy)
            if generation_config.is_assistant:
                model_kwargs["past_key_values"].activate_past_recording()


def begin(
    model: Evicting,
    x: Tensor,
    told: Told,
    options: PassOptions,
    *,
    rules: Rules,
    backend: str | Backend,
    cache: Cache | None = None,
    use_cache: bool | None = None,
    attentions: bool | None = False,
    learns: bool = False,
) -> Pass:
    """Decide how a pass runs.

    Args:
        model: whose budgets and policy apply unless others are given.
        x: [B, N, ...] the new tokens.
        told: masks, positions and lengths.
        options: of the call.
        rules: selection, strength and tau of all layers.
        backend: which implementation runs.
        cache: that the tokens continue.
        use_cache: whether to make one; None for what the config says, where there can be one.
        attentions: whether to return the attention weights.
        learns: whether the loss needs the memory term, of a text that begins here.
    """
    shape = (x.shape[0], x.shape[1])
    strength = options.get("selection_strength")
    budgets, policy = options.get("cache_budgets"), options.get("cache_policy")
    if strength is not None:
        checks.strength(strength)
        rules = rules._replace(strength=strength)
    if cache is not None and not isinstance(cache, SelectiveCache):
        raise SelattnError(
            f"a {type(cache).__name__} does not keep F, and the text would be silently wrong: "
            "pass a selattn.cache.SelectiveCache, or leave past_key_values out"
        )
    # A compiled step has one graph for all lengths, so it asks the cache for none.
    compiling = torch.compiler.is_compiling()
    one_step = compiling and cache is not None and shape[1] == 1 and cache.layers[0].is_initialized
    past = None if one_step else 0 if cache is None else cache.get_seq_length()
    if cache is not None and past != 0:
        places = next_places(shape, cache, past, told)
    else:
        places = whole_places(shape, told, x.device)
    # Only whole sequences have gradients, and can say what was kept of them: then a cache is filled afterwards.
    kept = options.get("output_kept", False) or (learns and past == 0)
    evicted_at = options.get("output_evictions", False)
    whole = past == 0 and (torch.is_grad_enabled() or kept or evicted_at)
    packed = told.cu_seq_lens_q is not None or told.seq_idx is not None
    packed = packed or (told.position_ids is not None and shape[1] > 1)
    if cache is None and use_cache is None:
        use_cache = _makes_cache(model, places.sequences, packed)
    if cache is not None or use_cache:
        if (kept or evicted_at) and not whole:
            raise SelattnError(
                "kept fractions, the memory term and evictions are known of whole sequences only: leave the cache out"
            )
        if model.recomputes():
            raise SelattnError("gradient checkpointing runs a layer twice, and would fill a cache twice: leave one out")
        if packed:
            refuse_several(places.sequences)
        cache = model.fitting_cache(cache, budgets, policy)
    # A cache owns its budgets and its policy.
    limits, chosen = model.limits(budgets, policy) if cache is None else (None, cache.policy)
    wanted = AuxRequest(f=options.get("output_f", False), memory=kept, weights=bool(attentions))
    if cache is None:
        places = places._replace(real=None)  # which only a cache reads
    return Pass(places, cache, cache is None or whole, limits, chosen, rules, wanted, evicted_at, backend)


def _makes_cache(model: Evicting, sequences: Sequences | None, packed: bool) -> bool:
    """Whether a pass that was not told makes a cache: not where there cannot be one."""
    if not model.wants_cache() or model.recomputes():
        return False
    if torch.compiler.is_exporting() or in_transform():
        return False
    if sequences is None or not packed:
        return True
    return not torch.compiler.is_compiling() and not bool(several(sequences))


def check_selects(budgets: Budgets | None, policy: Policy, selects: bool) -> None:
    """Raise if tokens would be evicted by their F in a model without F: the oldest would be, as in a window."""
    if policy.needs_f and not selects and policy.evicts and (budgets is not None or policy.leaves_early):
        own = "" if type(policy).__module__.startswith("selattn.") else "; one that reads no F sets needs_f = False"
        raise SelattnError(
            f"the policy {policy.name!r} needs F, and this model selects nothing: choose h2o, tova or window+4{own}"
        )


def _is_policy(own: Policy, wanted: str | Policy | type[Policy]) -> bool:
    """Whether a cache's policy is the wanted one."""
    if isinstance(wanted, type):
        return type(own) is wanted
    return own is wanted or own == make_policy(wanted)
