"""Variable Assignment (sections 2, A.1 and A.14 of the paper): what was last assigned to the variable asked for?

    <BOS> Z= 177 Y= 661 Z= 114 Z= 468 Y= 661

`Z=` and `177` are one token each. The paper writes the query as `x=?` and does not say how many tokens it is. Here it
is the variable's own token once more, so the last token is the answer to it and the only one with a loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from selattn.data.draws import Draw
from selattn.data.task import IGNORE, Task, at_least
from selattn.errors import SelattnError


@dataclass(frozen=True)
class VariableAssignment(Task):
    """Each assignment draws its variable and its value uniformly; the query is uniform over the assigned variables.

    Args:
        variables: how many there are: Z, Y, X and so on.
        values: how many there are: 0, 1, 2 and so on.
        assignments: in every sample.
        drawn_values: if given, only the first so many of the values occur. The token ids stay, so that a model that
            was trained on all of them can be tested on few.
    """

    name: ClassVar[str] = "variable-assignment"

    variables: int = 3
    values: int = 1000
    assignments: int = 128
    drawn_values: int | None = None

    def __post_init__(self) -> None:
        at_least(self, variables=1, values=1, assignments=1)
        if self.drawn_values is not None and not 1 <= self.drawn_values <= self.values:
            raise SelattnError(f"{self.name}: drawn_values must be in 1 .. {self.values}, not {self.drawn_values}")

    @classmethod
    def ten_by_ten(cls, assignments: int = 128) -> VariableAssignment:
        """The paper's other setting, 10 variables and 10 values; it leaves the number of assignments open."""
        return cls(variables=10, values=10, assignments=assignments)

    def out_of_distribution(self, values: int = 2) -> VariableAssignment:
        """The same vocabulary, but only so many values occur. The paper tests with 2."""
        return replace(self, drawn_values=values)

    def shifted(self) -> VariableAssignment | None:
        """As the paper tests it: with 2 values."""
        return self.out_of_distribution() if self.values > 2 else None

    @property
    def tokens(self) -> tuple[str, ...]:
        """<BOS>, then the variables, then the values."""
        return ("<BOS>", *map(_variable, range(self.variables)), *map(str, range(self.values)))

    @property
    def vocab_size(self) -> int:
        """V, without naming all tokens."""
        return 1 + self.variables + self.values

    @property
    def context(self) -> int:
        """<BOS>, two tokens for each assignment, the query and the answer."""
        return 2 * self.assignments + 3

    def rows(self, draw: Draw) -> dict[str, NDArray[np.int64]]:
        """Rows of ids and labels for the numbers that are drawn, see `Task.rows`."""
        drawn = self.values if self.drawn_values is None else self.drawn_values
        variable = draw.below(self.variables, self.assignments)  # [B, assignments]
        value = draw.below(drawn, self.assignments)
        assigned = (variable[:, :, None] == np.arange(self.variables)).any(1)  # [B, variables]
        chosen = draw.below(assigned.sum(1, keepdims=True))  # [B, 1], counted among those assigned
        query = (assigned.cumsum(1) > chosen).argmax(1)  # [B]
        last = self.assignments - 1 - (variable == query[:, None])[:, ::-1].argmax(1)
        answer = np.take_along_axis(value, last[:, None], 1)[:, 0]

        first_variable, first_value = 1, 1 + self.variables
        ids = np.zeros((len(variable), self.context), np.int64)  # <BOS> is 0
        ids[:, 1:-2:2] = first_variable + variable
        ids[:, 2:-2:2] = first_value + value
        ids[:, -2] = first_variable + query
        ids[:, -1] = first_value + answer
        labels = np.full_like(ids, IGNORE)
        labels[:, -1] = ids[:, -1]
        return {"input_ids": ids, "labels": labels}


def _variable(index: int) -> str:
    """Z=, Y=, ... A=, Z1=, Y1= and so on."""
    lap, letter = divmod(index, 26)
    return f"{chr(ord('Z') - letter)}{lap or ''}="
