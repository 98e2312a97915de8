"""What makes a stock model selective, as it stands in the model's config under `selattn`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from selattn.errors import SelattnError
from selattn.eviction import Budgets
from selattn.ops import Selection


@dataclass(frozen=True)
class NewForm:
    """A selecting form of its own: S = relu(W_q x . W_k x' / sqrt(size) + b), with no head in it.

    At first W_k = 0 and b is small, so that the model starts at its stock loss; W_q is random, so that it does move
    (with all at 0 it never would: the derivative of relu at 0 is 0). A bias b adds b times the distance to F, hence the
    2.5 / N.

    Args:
        masks: how many; None is one for each key-value head.
        size: features of a query and a key, the bias included; None is the model's head size.
        bias: b at first; None is 2.5 / `context`.
        deviation: of W_q at first.
        context: N, for which b is meant; None is the model's longest sequence.
    """

    masks: int | None = None
    size: int | None = None
    bias: float | None = None
    deviation: float = 0.125
    context: int | None = None

    def __post_init__(self) -> None:
        for name in ("masks", "size", "context"):
            value = getattr(self, name)
            least = 2 if name == "size" else 1
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise SelattnError(f"NewForm.{name} must be a whole number of at least {least}, not {value!r}")


@dataclass(frozen=True)
class StockSettings:
    """All of it.

    Attributes:
        selection: which head selects, the constraints and the shift; None: nothing selects, the cache only evicts.
        form: the form that selects in the place of a head; None for a head.
        strength: multiplies S.
        memory_epsilon: weight of the memory term in the loss.
        memory_tau: the clamp of M_i.
        cache_budgets: K_l, in force unless others are given.
        cache_policy: who leaves when a layer is full.
        backend: which implementation runs.
    """

    selection: Selection | None = None
    form: NewForm | None = None
    strength: float = 1.0
    memory_epsilon: float = 0.0
    memory_tau: float = 1.0
    cache_budgets: int | list[int] | None = None
    cache_policy: str = "selective"
    backend: str = "auto"

    @property
    def budgets(self) -> Budgets | None:
        """K_l as an object."""
        return Budgets.of(self.cache_budgets)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Any) -> StockSettings:
        """What `to_dict` gave; one line for anything else."""
        try:
            chosen, form = found.get("selection"), found.get("form")
            if chosen is not None:
                head = chosen["head"]
                chosen = Selection(**{**chosen, "head": tuple(head) if isinstance(head, list) else head})
            return cls(**{**found, "selection": chosen, "form": None if form is None else NewForm(**form)})
        except (AttributeError, KeyError, TypeError) as error:
            raise SelattnError(f"the config's settings of selattn cannot be read: {error}") from None
