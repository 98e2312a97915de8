"""A model with or without budgets, and a policy; and how many tokens its cache must hold.

    Subject.of("zoo:memory", budgets=64, policy="h2o")

Of each layer

    held   the most tokens, at any time within N, that a later query can still read
    read   the most tokens that one query reads

With a budget K both are at most K. A window of W needs W of both. A sparse pattern differs: the strided one of Child et
al. reads few tokens, but every one of them is read again some stride later, so all have to be held. KV size means the
tokens held, since they take the memory. Records give both.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from selattn.cache import Budgets, Policy, import_policy, make_policy, policy_name
from selattn.errors import SelattnError
from selattn.models.forward import check_selects
from selattn.models.loading import Loaded, load
from selattn.models.protocols import AttentionKind, Description, LanguageModel
from selattn.ops.rules import pattern_visible
from selattn.utils.memory import check_fits

BUDGETS = "budgets.json"  # in the folder of a search
NONE = "none"  # the policy that evicts nothing
LARGEST = 2**31 - 1  # more than any context has


@dataclass(frozen=True)
class Subject:
    """A model and how its cache is pruned."""

    name: str  # as the user wrote it
    loaded: Loaded
    budgets: Budgets | None = None  # None for those of its config, which usually has none
    policy: str | Policy | None = None  # a name, `package.module:Class`, or a policy; None for the config's

    @classmethod
    def of(
        cls,
        model: str | Path | Subject | Loaded | LanguageModel,
        budgets: Budgets | int | Sequence[int] | None = None,
        policy: str | Policy | None = None,
    ) -> Subject:
        """A model by its name, or the model itself; without budgets those of its config are in force."""
        if isinstance(model, Subject):
            return model
        name, at, how = str(model).rpartition("@") if isinstance(model, str) else ("", "", "")
        if at and not Path(str(model)).exists():
            raise SelattnError(f"{how!r} behind the @ belongs to the command line: write Subject.of({name!r}, budgets)")
        found, chosen = load(model), Budgets.of(budgets)
        if chosen is None:
            _check_in_force(found, policy)
            return cls(found.name, found, None, policy)
        check_budgets(chosen, found.description, policy)
        called = "" if policy is None else f":{policy_name(policy)}"
        return cls(f"{found.name}@{','.join(map(str, chosen))}{called}", found, chosen, policy)

    @classmethod
    def parse(cls, text: str, default: str | None = None) -> Subject:
        """From the command line: `MODEL`, `MODEL@BUDGETS` or `MODEL@BUDGETS:POLICY`.

        BUDGETS is a number for all layers, one for each (`8,48,8`), a budgets file, or the folder of a search.
        `MODEL@none` ignores the budgets of the model's config. `default` is the policy if the text has budgets alone.
        """
        name, at, how = text.rpartition("@")
        if not at:
            found = load(text)
            _check_in_force(found, default)
            return cls(text, found, None, default)
        if not how:
            raise SelattnError(f"{text!r} has nothing behind its @: write MODEL@BUDGETS or MODEL@BUDGETS:POLICY")
        budgets, colon, policy = how.partition(":")
        if colon and not policy:
            raise SelattnError(f"{text!r} ends with a colon: write the policy behind it, or leave it out")
        policy = policy or ("" if how == NONE else default or "")
        if policy:
            import_policy(policy)
        found = load(name)
        if how == NONE:
            return cls(text, found, None, NONE)
        chosen = read_budgets(budgets)
        check_budgets(chosen, found.description, policy or None)
        return cls(text, found, chosen, policy or None)

    @property
    def description(self) -> Description:
        """Of the model, with the budgets and the policy that are in force."""
        own = self.loaded.description
        policy = own.policy if self.policy is None else import_policy(self.policy)
        return replace(own, budgets=self.budgets or own.budgets, policy=policy)

    @property
    def policy_name(self) -> str:
        """For tables and records."""
        return policy_name(self.loaded.description.policy if self.policy is None else self.policy)


def _check_in_force(model: Loaded, policy: str | Policy | None) -> None:
    """Raise for a policy without budgets: it would evict nothing."""
    if policy not in (None, NONE) and model.description.budgets is None:
        raise SelattnError(f"{model.name} has no budgets, so no policy is in force: write {model.name}@BUDGETS")


def read_budgets(text: str) -> Budgets:
    """A number for all layers, a number for each, a budgets file, or the folder of a search."""
    text = text.strip()
    if re.fullmatch(r"\[?[\d\s,-]*\]?", text):
        try:
            if text.startswith("[") != text.endswith("]"):
                raise ValueError(text)  # half of a pair of brackets is missing
            numbers = [int(number) for number in text.removeprefix("[").removesuffix("]").split(",")]
        except ValueError:
            raise SelattnError(f"budgets are a number, or one for each layer such as 8,48,8, not {text!r}") from None
        budgets = Budgets(tuple(numbers) if len(numbers) > 1 else numbers[0])
    else:
        path = Path(text).expanduser()
        if path.is_dir() and not (path / BUDGETS).is_file():
            raise SelattnError(f"{path} has no {BUDGETS}: it is not the folder of a search that has ended")
        budgets = Budgets.load(path / BUDGETS if path.is_dir() else path)
    if max(budgets) > LARGEST:
        raise SelattnError(f"a budget must be at most {LARGEST} tokens, not {max(budgets)}")
    return budgets


def check_budgets(budgets: Budgets, model: Description, policy: str | Policy | None) -> None:
    """Raise for budgets that do not fit the model or the policy."""
    budgets.for_layers(model.layers)
    chosen = make_policy(model.policy) if policy is None else import_policy(policy)
    if not chosen.evicts:
        raise SelattnError(
            f"the policy {policy_name(policy or model.policy)!r} evicts nothing, whatever the budgets: "
            "leave them out, or change it"
        )
    check_selects(budgets, chosen, model.selects)


def check_context(name: str, loaded: Loaded, context: int) -> None:
    """Raise for rows that are too long for the model or for the memory; its weights are not read."""
    most = loaded.description.longest
    if most is not None and context > most:
        raise SelattnError(f"{name} has {most} learned positions: --context can be at most {most}, not {context}")
    width = 1  # of a model without a config of transformers: at least the ids
    with contextlib.suppress(SelattnError):
        width = int(getattr(loaded.config, "hidden_size", width))
    needed = context * (8 + 4 * 2 * width)  # ids, and the input, query, key and value of one layer
    check_fits(needed, f"{name} with rows of {context:,} tokens needs", "choose a smaller --context")


@dataclass(frozen=True)
class KVSize:
    """Tokens by layer, and what follows from them."""

    held: tuple[int, ...]
    read: tuple[int, ...]
    mean: float  # of those held, over the layers
    memory_factor: float  # layers * N / tokens held: with budgets the paper's memory factor


def kv_size(
    model: Description, context: int, budgets: Budgets | None = None, policy: str | Policy | None = None
) -> KVSize:
    """The cache of a model at N tokens; with its own budgets and policy unless others are given."""
    budgets = budgets or model.budgets
    limits: list[int] = [context] * model.layers
    chosen = make_policy(model.policy) if policy is None else import_policy(policy)
    if budgets is not None and chosen.evicts:
        limits = [min(k, context) for k in budgets.for_layers(model.layers)]
    kinds = {kind: _unlimited(kind, context, model.heads) for kind in model.kinds}
    sizes = [tuple(min(size, limit) for size in kinds[kind]) for kind, limit in zip(model.kinds, limits, strict=True)]
    held, read = zip(*sizes, strict=True)
    mean = sum(held) / len(held)
    return KVSize(held, read, mean, context / mean)


def _unlimited(kind: AttentionKind, context: int, heads: int) -> tuple[int, int]:
    """Held and read, counted in the whole matrix of visible pairs."""
    if kind.pattern is None:
        size = min(kind.window or context, context)
        return size, size
    place = torch.arange(context)
    seen = pattern_visible(kind.pattern, place[None, :, None], place[None, None, :], heads).any(1)[0]
    seen = seen & (place[None, :] <= place[:, None])  # [N, N]
    last = torch.where(seen, place[:, None], -1).amax(0)  # the last query that reads each token
    held = ((place[None, :] <= place[:, None]) & (last[None, :] >= place[:, None])).sum(-1)
    return int(held.max()), int(seen.sum(-1).max())
