"""Budgets: how many tokens each layer may keep. Immutable data, with a JSON form."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError
from selattn.utils.files import write_json

SMALLEST = 2  # the first token and the newest
LARGEST = 2**31 - 1  # positions are 32-bit numbers


@dataclass(frozen=True)
class Budgets:
    """K_l for each layer: no token is evicted while it holds at most K_l; from then on one is at each step.

    Args:
        tokens: one number for all layers, or one for each layer.
    """

    tokens: int | tuple[int, ...]

    def __post_init__(self) -> None:
        if isinstance(self.tokens, list):
            object.__setattr__(self, "tokens", tuple(self.tokens))
        numbers = self.tokens if isinstance(self.tokens, tuple) else (self.tokens,)
        for number in numbers:
            if isinstance(number, int) and abs(number) > LARGEST:  # nor can such a number always be printed
                raise SelattnError(f"a budget must be at most {LARGEST:,} tokens: leave it out to keep everything")
            if isinstance(number, bool) or not isinstance(number, int) or number < SMALLEST:
                raise SelattnError(f"a budget must be a whole number of at least {SMALLEST} tokens, not {number!r}")
        if not numbers:
            raise SelattnError("budgets are an empty list: give one number, or one for each layer")

    @classmethod
    def of(cls, value: Budgets | int | Sequence[int] | None) -> Budgets | None:
        """From a number or a list; None stays None, which is no budget."""
        if value is None or isinstance(value, Budgets):
            return value
        return cls(tuple(value) if isinstance(value, Sequence) else value)

    def for_layers(self, layers: int) -> tuple[int, ...]:
        """K_l of each layer of a model."""
        if isinstance(self.tokens, int):
            return (self.tokens,) * layers
        if len(self.tokens) != layers:
            raise SelattnError(f"{len(self.tokens)} budgets do not fit a model of {layers} layers: give one for each")
        return self.tokens

    def memory_factor(self, layers: int, context: int) -> float:
        """layers * N / sum of K_l, as the paper counts it."""
        return layers * context / sum(min(k, context) for k in self.for_layers(layers))

    def scaled(self, factor: float) -> Budgets:
        """All budgets times a factor, for another context size."""
        numbers = (self.tokens,) if isinstance(self.tokens, int) else self.tokens
        scaled = tuple(max(SMALLEST, round(k * factor)) for k in numbers)
        return Budgets(scaled[0] if isinstance(self.tokens, int) else scaled)

    def to_json(self) -> int | list[int]:
        """The plain form, as it stands in a config."""
        return self.tokens if isinstance(self.tokens, int) else list(self.tokens)

    def to_dict(self) -> int | list[int]:
        """The same, under the name by which transformers asks for it when it writes a `GenerationConfig`."""
        return self.to_json()

    def save(self, path: str | os.PathLike[str], **notes: Any) -> None:
        """Write `{"budgets": ..., **notes}`, whole or not at all."""
        write_json(Path(path), {"budgets": self.to_json(), **notes})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Budgets:
        """Read what `save` wrote; a bare number or list is fine too."""
        try:
            saved = json.loads(Path(path).read_text())
        except OSError as error:
            raise SelattnError(f"cannot read the budgets file {str(path)!r}: {error.strerror}") from None
        except (ValueError, RecursionError):  # of bytes that are no text, numbers with thousands of digits, deep lists
            raise SelattnError(f"the budgets file {str(path)!r} is not JSON: write a list such as [8, 48, 8]") from None
        value = saved.get("budgets") if isinstance(saved, dict) else saved
        if not isinstance(value, int | list):
            raise SelattnError(f'the budgets file {str(path)!r} has no number or list under "budgets"')
        return cls(value if isinstance(value, int) else tuple(value))

    def __iter__(self) -> Iterator[int]:
        return iter((self.tokens,) if isinstance(self.tokens, int) else self.tokens)
