"""What makes a stock model selective, as it stands in the model's config under `selattn`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from selattn.cache import Budgets
from selattn.errors import SelattnError
from selattn.models.config import check_settings
from selattn.models.form import NewForm
from selattn.ops import Selection


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

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def budgets(self) -> Budgets | None:
        """K_l as an object."""
        return Budgets.of(self.cache_budgets)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "cache_budgets": None if self.budgets is None else self.budgets.to_json()}

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
