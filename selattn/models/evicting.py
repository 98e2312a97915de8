"""What a model needs to have budgets: which are in force, and caches that own them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers.cache_utils import Cache

from selattn.cache import Budgets, Policy, SelectiveCache, make_policy
from selattn.errors import SelattnError
from selattn.models.seam import Description

EVICTION = ("cache_budgets", "cache_policy")  # the arguments of `forward` and `generate`


class Evicting:
    """A model with budgets of its own. A subclass says which, and how many layers it has."""

    cache_policy: Policy | None = None  # in force in the place of the config's, which is a name; never saved

    def own_eviction(self) -> tuple[Budgets | None, str | Policy]:
        """Budgets and policy that the model's config has."""
        raise NotImplementedError

    @property
    def selects(self) -> bool:
        """Whether any layer does."""
        raise NotImplementedError

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and those that there are: fewer run where transformers drafts by leaving early."""
        raise NotImplementedError

    def wants_cache(self) -> bool:
        """Whether a pass that was not told makes a cache."""
        raise NotImplementedError

    def recomputes(self) -> bool:
        """Whether the layers run twice, by gradient checkpointing: then there cannot be a cache."""
        return False

    def eviction(
        self, budgets: Budgets | int | Sequence[int] | None, policy: str | Policy | None
    ) -> tuple[Budgets | None, Policy]:
        """Budgets and policy that are in force: those given, or else the model's own."""
        own_budgets, own_policy = self.own_eviction()
        own_policy = own_policy if self.cache_policy is None else self.cache_policy
        chosen = Budgets.of(budgets) or own_budgets
        running, layers = self.layer_counts()
        if chosen is not None and running < layers:
            chosen = Budgets(chosen.for_layers(layers)[:running])
        found = make_policy(own_policy if policy is None else policy)
        check_selects(chosen, found, self.selects)
        return chosen, found

    def limits(
        self, budgets: Budgets | int | Sequence[int] | None, policy: str | Policy | None
    ) -> tuple[tuple[int, ...] | None, Policy]:
        """The same for a pass without a cache: K_l of each layer."""
        chosen, found = self.eviction(budgets, policy)
        return None if chosen is None else chosen.for_layers(self.layer_counts()[0]), found

    def fits(self, budgets: Budgets | int | Sequence[int] | None) -> bool:
        """Whether budgets are for as many layers as there are."""
        found = Budgets.of(budgets)
        return found is None or isinstance(found.tokens, int) or len(found.tokens) == self.layer_counts()[1]

    def new_cache(
        self,
        budgets: Budgets | int | Sequence[int] | None = None,
        policy: str | Policy | None = None,
    ) -> Any:
        """An empty cache for this model, with the model's budgets and policy unless others are given.

        The cache owns them from then on: `forward` and `generate` need not be told again.
        """
        return self._own_cache(budgets, policy)

    def _own_cache(self, budgets: Budgets | int | Sequence[int] | None, policy: str | Policy | None) -> SelectiveCache:
        return SelectiveCache(self.layer_counts()[0], *self.eviction(budgets, policy))

    def fitting_cache(
        self,
        given: SelectiveCache | None,
        budgets: Budgets | int | Sequence[int] | None,
        policy: str | Policy | None,
    ) -> SelectiveCache:
        """The given cache, if it fits, or a new one."""
        if given is None:
            return self._own_cache(budgets, policy)
        layers = self.layer_counts()[0]
        if len(given.layers) != layers:
            raise SelattnError(
                f"this cache has {len(given.layers)} layers and the model {layers}: make one with new_cache()"
            )
        if not given.layers[0].is_initialized:
            check_selects(given.budgets, given.policy, self.selects)
        other = budgets is not None and self.eviction(budgets, policy)[0] != given.budgets
        if other or (policy is not None and not _is_policy(given.policy, policy)):
            raise SelattnError(
                f"this cache was made for {given.budgets or 'no budgets'} and the policy {given.policy.name!r}: "
                "leave cache_budgets and cache_policy out, the cache has them, or begin with a new cache"
            )
        return given


class PrunedGeneration:
    """What `generate()` needs so that it begins with a cache that keeps F. It stands before `GenerationMixin`."""

    new_cache: Callable[..., SelectiveCache]  # these three as in `Evicting`
    layer_counts: Callable[[], tuple[int, int]]
    fits: Callable[[Any], bool]

    @property
    def description(self) -> Description:
        """What is known of the model without its weights."""
        raise NotImplementedError

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Budgets and policy may stand in a `GenerationConfig`, too; what `generate()` is given goes before it."""
        given = {name: kwargs.pop(name) for name in EVICTION if name in kwargs}
        chosen, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)  # type: ignore[misc]
        for name in EVICTION:
            value = given.get(name)
            if value is None and model_kwargs.get("past_key_values") is None:  # a cache that is given has its own
                value = getattr(chosen, name, None)
            if value is not None:
                model_kwargs[name] = value
        layers = self.layer_counts()[0]
        leaves = chosen.assistant_early_exit
        if leaves is not None and (isinstance(leaves, bool) or not isinstance(leaves, int) or not 0 < leaves <= layers):
            raise SelattnError(f"assistant_early_exit must be a layer, 1 to {layers} here, not {leaves!r}")
        return chosen, model_kwargs

    def _check_heeded(self, budgets: Any, policy: Any) -> None:
        """Raise for a policy that nothing would ask."""
        if policy is None or budgets is not None or self.description.budgets is not None:
            return
        chosen = make_policy(policy)
        if chosen.evicts and not chosen.leaves_early:
            raise SelattnError(f"the policy {chosen.name!r} would change nothing: without cache_budgets nothing leaves")

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. Of a generation config that was made from a model's config transformers reads only what
        it knows itself: one that has been given budgets is none of these any more.
        """
        own: Any = getattr(self, "generation_config", None)
        if any(getattr(own, name, None) is not None for name in EVICTION):
            own._from_model_config = False
        return super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """`generate()` begins with a cache that keeps F; transformers' default would lose it."""
        if generation_config.cache_implementation is not None:
            raise SelattnError(
                f"cache_implementation={generation_config.cache_implementation!r} does not keep F: leave it out"
            )
        given = {name: model_kwargs.get(name) for name in EVICTION}
        if model_kwargs.get("past_key_values") is None and not generation_config.is_assistant:
            self._check_heeded(*given.values())
        if generation_config.use_cache is False:
            return
        if generation_config.is_assistant:
            # It is told what the main model is told. A list of budgets may be for other layers than its own.
            given = {name: model_kwargs.pop(name, None) for name in EVICTION}
            if not self.fits(given["cache_budgets"]):
                given["cache_budgets"] = None
        if model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = self.new_cache(*given.values())
            if generation_config.is_assistant:
                model_kwargs["past_key_values"].activate_past_recording()


def check_selects(budgets: Budgets | None, policy: Policy, selects: bool) -> None:
    """Raise if tokens would leave by their F in a model that has none: the oldest would, as in a window."""
    if policy.needs_f and not selects and policy.evicts and (budgets is not None or policy.leaves_early):
        own = "" if type(policy).__module__.startswith("selattn.") else "; one that reads no F sets needs_f = False"
        raise SelattnError(
            f"the policy {policy.name!r} needs F, and this model selects nothing: choose h2o, tova or window+4{own}"
        )


def selective_cache(cache: Cache | None) -> SelectiveCache | None:
    """The cache, if it is of a kind that keeps F between steps."""
    if cache is None or isinstance(cache, SelectiveCache):
        return cache
    raise SelattnError(
        f"a {type(cache).__name__} does not keep F, and the text would be silently wrong: "
        "pass a selattn.cache.SelectiveCache, or leave past_key_values out"
    )


def _is_policy(own: Policy, wanted: str | Policy | type[Policy]) -> bool:
    """Whether a cache's policy is the one that is asked for again."""
    if isinstance(wanted, type):
        return type(own) is wanted
    return own is wanted or own == make_policy(wanted)
