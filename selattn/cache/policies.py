"""Eviction policies: which token is evicted when a layer is full. One small class each; docs/cache.md has an example.

Before a token attends, if the budget is used up, the kept earlier token that a policy ranks highest is evicted for
good. Ties: never the sequence's first token, then the oldest. A policy may keep a score for each token, which it
updates with the attention weights after each query, and may evict tokens before the budget is used up (`leaves`).

A policy is an object that does not change: the cache keeps the score, which is all that it knows of a token. A name of
`POLICIES` stands for a policy everywhere (`make_policy`), for the same object each time.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from selattn.cache.budgets import LARGEST
from selattn.errors import SelattnError, unknown
from selattn.ops.eviction import Kept

PER_HEAD = "-per-head"  # behind a policy's name: each key-value head evicts on its own


class Policy:
    """One eviction policy. A subclass needs `rank`, and nothing else.

    Attributes:
        name: what it is called in tables and messages; the class's name unless given.
        per_head: each key-value head evicts on its own, so that positions differ between heads.
        evicts: whether tokens are ever evicted.
        needs_weights: whether `update` wants the attention weights; by itself true where `update` is overridden.
        leaves_early: whether `leaves` evicts tokens while there is room; by itself true where `leaves` is overridden.
        needs_f: whether `rank` or `leaves` reads F. True unless a policy says that it does not, which saves time.
    """

    name: str
    per_head: ClassVar[bool] = False
    evicts: ClassVar[bool] = True
    needs_weights: ClassVar[bool] = False
    needs_f: ClassVar[bool] = True
    leaves_early: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        if "update" in cls.__dict__ and "needs_weights" not in cls.__dict__:
            cls.needs_weights = True
        if "leaves" in cls.__dict__:
            cls.leaves_early = True
        # Never inherited: the compiled library does not know what a subclass overrides.
        if "compiled" not in cls.__dict__:
            cls.compiled = Policy.compiled  # type: ignore[method-assign]

    def rank(self, kept: Kept) -> Tensor:
        """[B, P, C]: the token with the highest rank is evicted."""
        raise NotImplementedError(f"the policy {self.name!r} has no rank(kept): the highest rank is evicted")

    def leaves(self, kept: Kept) -> Tensor | None:
        """[B, P, C] bool: the tokens to evict although there is room; None for none."""
        return None

    def update(self, score: Tensor, weights: Tensor) -> Tensor:
        """The new scores [B, P, C] after a query attended with `weights` [B, P, C], a mean over the heads of each P."""
        return score

    def to_dict(self) -> str:
        """Its name, which is what transformers writes when it stands in a `GenerationConfig`."""
        return self.name

    def compiled(self) -> tuple[str, float] | None:
        """Its name in csrc/cache/policies.h and its parameter, or None for a policy that runs in Python, row by row."""
        return None


@dataclass(frozen=True)
class Selective(Policy):
    """Evicts the token with the highest F (the paper, section 4).

    Args:
        per_head: each key-value head evicts on its own, by the F of the masks that its query heads follow. That differs
            from one set for all where there are several masks.
    """

    per_head: bool = False  # type: ignore[misc]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name that makes such a policy: `selective`, or `selective-per-head`."""
        return "selective" + PER_HEAD * self.per_head

    def rank(self, kept: Kept) -> Tensor:
        return kept.f.expand_as(kept.position)

    def compiled(self) -> tuple[str, float] | None:
        return "POLICY_SELECTIVE", 0.0


@dataclass(frozen=True)
class H2O(Policy):
    """Evicts the token with the lowest accumulated attention, each key-value head on its own.

    Zhang et al., 2023, https://arxiv.org/abs/2306.14048, https://github.com/FMInference/H2O. It departs in two things:
    one token is evicted at each step, also inside a prompt, where the reference cuts a prompt once at its end; and with
    grouped heads the score is a mean over the query heads that share a key-value head.

    Args:
        recent: the share of the budget that belongs to the latest tokens, which are safe.
    """

    recent: float = 0.5
    name = "h2o"
    per_head = True
    needs_f = False

    def __post_init__(self) -> None:
        if not isinstance(self.recent, int | float) or not 0 <= self.recent <= 1:
            raise SelattnError(f"H2O's share of recent tokens must be in [0, 1], not {self.recent!r}")

    def rank(self, kept: Kept) -> Tensor:
        # How many kept tokens are newer: the coming one and the latest recent * budget - 1 are safe.
        newer = kept.position.argsort(-1, descending=True).argsort(-1)
        return (-kept.score).masked_fill(newer < math.floor(self.recent * kept.budget) - 1, -torch.inf)

    def update(self, score: Tensor, weights: Tensor) -> Tensor:
        return score + weights

    def compiled(self) -> tuple[str, float] | None:
        return "POLICY_H2O", self.recent


@dataclass(frozen=True)
class Tova(Policy):
    """Evicts the token that the last query attended to least; attention is averaged over the heads.

    Oren et al., 2024, https://arxiv.org/abs/2401.06104, https://github.com/schwartz-lab-NLP/TOVA. It departs in one
    thing: from a prompt, too, tokens are evicted one by one, where the reference cuts a prompt once at its end.

    Args:
        per_head: each key-value head evicts on its own, by the attention of its query heads.
    """

    per_head: bool = False  # type: ignore[misc]
    needs_f = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name that makes such a policy: `tova`, or `tova-per-head`."""
        return "tova" + PER_HEAD * self.per_head

    def rank(self, kept: Kept) -> Tensor:
        return -kept.score

    def update(self, score: Tensor, weights: Tensor) -> Tensor:
        return weights

    def compiled(self) -> tuple[str, float] | None:
        return "POLICY_TOVA", 0.0


@dataclass(frozen=True)
class Window(Policy):
    """Evicts the oldest token after the first `sinks`.

    With a budget K of at most `sinks` there is no window: the first K - 1 tokens and the newest are kept.

    With sinks=4 it is Window+4 of Oren et al. (https://arxiv.org/abs/2401.06104), known as StreamingLLM (Xiao et al.,
    2023, https://arxiv.org/abs/2309.17453, https://github.com/mit-han-lab/streaming-llm). It departs from StreamingLLM
    in one thing: kept tokens stay at their positions, where StreamingLLM counts positions inside the cache.

    Args:
        sinks: how many of a sequence's first tokens are safe.
    """

    sinks: int = 0
    needs_f = False

    def __post_init__(self) -> None:
        if isinstance(self.sinks, bool) or not isinstance(self.sinks, int) or self.sinks < 0:
            raise SelattnError(f"Window's sinks must be a whole number of tokens, at least 0, not {self.sinks!r}")
        if self.sinks > LARGEST:
            raise SelattnError(f"Window's sinks must be at most {LARGEST:,} tokens, which is more than any context has")

    @property
    def name(self) -> str:  # type: ignore[override]
        """`window`, or `window+4` with 4 sinks."""
        return f"window+{self.sinks}" if self.sinks else "window"

    def rank(self, kept: Kept) -> Tensor:
        safe = kept.position < min(self.sinks, kept.budget - 1)
        return (-kept.position).to(kept.score.dtype).masked_fill(safe, -torch.inf)

    def compiled(self) -> tuple[str, float] | None:
        return "POLICY_WINDOW", float(self.sinks)


@dataclass(frozen=True)
class Threshold(Policy):
    """Evicts every token with F > tau at once; beyond the budget, the highest F.

    The variant that the paper names in section 4 and sets aside, because the number of evicted tokens varies. The
    first token of a sequence stays.

    Args:
        tau: the threshold.
        per_head: each key-value head evicts on its own, as in `Selective`.
    """

    tau: float
    per_head: bool = False  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not isinstance(self.tau, int | float) or not self.tau >= 0:
            raise SelattnError(f"the threshold must be at least 0, not {self.tau!r}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name that makes such a policy, `threshold=0.5` or `threshold=0.5-per-head`."""
        return f"threshold={self.tau:g}" + PER_HEAD * self.per_head

    def rank(self, kept: Kept) -> Tensor:
        return kept.f.expand_as(kept.position)

    def leaves(self, kept: Kept) -> Tensor:
        return (kept.f > self.tau) & (kept.position > 0)


@dataclass(frozen=True)
class KeepAll(Policy):
    """Evicts nothing: budgets are not in force, and the cache grows with the text."""

    name = "none"
    evicts = False
    needs_f = False


# The names that stand for a policy, and what each makes. `window+8`, `threshold=0.5` and `selective-per-head` are, too.
POLICIES: dict[str, Callable[[], Policy]] = {
    "selective": Selective,
    "h2o": H2O,
    "tova": Tova,
    "window+4": lambda: Window(4),
    "window": Window,
}


def make_policy(value: str | Policy | type[Policy]) -> Policy:
    """The policy of a name, or the policy itself."""
    if isinstance(value, type) and issubclass(value, Policy):
        value = _made(value)
    if isinstance(value, Policy):
        if value.evicts and type(value).rank is Policy.rank:
            raise SelattnError(f"the policy {type(value).__name__} has no rank(kept): derive a class that has one")
        return value
    if not isinstance(value, str):
        raise SelattnError(f"a policy is a name or a selattn.Policy, not {type(value).__name__}")
    if value in POLICIES:
        return _named(value)
    if value.endswith(PER_HEAD):
        whole = make_policy(value.removesuffix(PER_HEAD))
        if isinstance(whole, Selective | Tova | Threshold):
            return replace(whole, per_head=True)
        if whole.per_head:
            raise SelattnError(f"the policy {whole.name!r} evicts for each head anyway: leave {PER_HEAD!r} out")
        raise SelattnError(f"the policy {whole.name!r} does the same in every head: leave {PER_HEAD!r} out")
    if value == KeepAll.name:
        return KeepAll()
    kind, plus, number = value.partition("+")
    if kind == "window" and plus and number.isdecimal():
        return Window(int(number))
    kind, equals, number = value.partition("=")
    if kind == "threshold" and equals:
        try:
            tau = float(number)
        except ValueError:
            raise SelattnError(f"the threshold in {value!r} is not a number: write threshold=1") from None
        return Threshold(tau)
    raise SelattnError(unknown("eviction policy", value, [*POLICIES, KeepAll.name, "threshold=TAU"]))


def _made(kind: type[Policy]) -> Policy:
    try:
        return kind()
    except TypeError as error:
        raise SelattnError(f"{kind.__name__} cannot be made without arguments ({error}): give an object") from None


# The one object that each name stands for, with what made it. A plain dict, which torch.compile can read.
_MADE = {name: (make, make()) for name, make in POLICIES.items()}


def _named(name: str) -> Policy:
    """The one object that a name of `POLICIES` stands for, so that a cache knows its own policy again by the name."""
    make = POLICIES[name]
    if name not in _MADE or _MADE[name][0] is not make:
        _MADE[name] = (make, make())
    return _MADE[name][1]


def policy_name(policy: str | Policy) -> str:
    """The name of a policy in tables and records: as it was written, or the object's own."""
    return policy.name if isinstance(policy, Policy) else policy


def import_policy(text: str | Policy) -> Policy:
    """A policy that a user names: `package.module:Class` for one of the user's own, or one of the names; or the policy.

    Only what a user says is read so: a name in a model's config never makes anything be imported.
    """
    if isinstance(text, Policy):
        return text
    module, colon, name = text.partition(":")
    if not colon:
        return make_policy(text)
    if module in POLICIES:
        raise SelattnError(f"the policy {module!r} takes nothing behind a colon: leave {name!r} out of {text!r}")
    here = os.getcwd()  # where a user's own module lies; `python -m` looks there, an installed command does not
    sys.path.insert(0, here)
    try:
        imported: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SelattnError(f"cannot import the policy {text!r}: {error}") from None
    finally:
        sys.path.remove(here)
    if not (isinstance(imported, Policy) or (isinstance(imported, type) and issubclass(imported, Policy))):
        raise SelattnError(f"{text} is no selattn.Policy: derive a class from it")
    return make_policy(imported)
