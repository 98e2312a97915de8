"""The paper's synthetic tasks: Variable Assignment, Copy and Parity*; `python -m lab show TASK` prints samples.

A task is a frozen set of settings; sample i of it is a pure function of (seed, i).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from selattn.cli import _options
from selattn.cli._options import Parser
from selattn.data.draws import Draw
from selattn.data.task import IGNORE, Task, TaskDataset, at_least
from selattn.errors import SelattnError, advice

__all__ = ["IGNORE", "TASKS", "Copy", "Parity", "Task", "TaskDataset", "VariableAssignment", "make_task"]

_SPECIAL = ("<PAD>", "<BOS>", "<SEP>", "<EOS>")  # of Copy
_PAD, _BOS, _SEP, _EOS = range(4)


@dataclass(frozen=True)
class VariableAssignment(Task):
    """Variable Assignment (sections 2, A.1 and A.14 of the paper): what was last assigned to the variable asked for?

        <BOS> Z= 177 Y= 661 Z= 114 Z= 468 Y= 661

    `Z=` and `177` are one token each. The paper writes the query as `x=?` and does not say how many tokens it is. Here
    it is the variable's own token once more, so the last token is the answer to it and the only one with a loss.

    Each assignment draws its variable and its value uniformly; the query is uniform over the assigned variables.

    Args:
        variables: how many there are: Z, Y, X and so on.
        values: how many there are: 0, 1, 2 and so on.
        assignments: in every sample.
        drawn_values: if given, how many of the values occur, the first ones. The token ids stay, so that a model that
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
        """The same vocabulary, but few of the values occur. The paper tests with 2."""
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


@dataclass(frozen=True)
class Copy(Task):
    """Copy (section A.2 of the paper): repeat a sequence of varying length that ends with a special token.

        <BOS> q w w e <SEP> q w w e <EOS> <PAD> <PAD>

    The loss is on the copy and on its <EOS>, so that knowing where to stop is part of the task.

    Lengths are uniform in shortest .. longest, symbols are uniform and may repeat.

    Args:
        longest: L_max of the paper.
        shortest: 1 in the paper.
        symbols: how many there are; the paper does not say.
    """

    name: ClassVar[str] = "copy"

    longest: int = 24
    shortest: int = 1
    symbols: int = 26

    def __post_init__(self) -> None:
        at_least(self, shortest=1, symbols=1)
        if self.longest < self.shortest:
            raise SelattnError(f"{self.name}: longest ({self.longest}) is less than shortest ({self.shortest})")

    @property
    def tokens(self) -> tuple[str, ...]:
        """The four special ones, then letters, or numbers if letters do not suffice."""
        letters = ascii_lowercase if self.symbols <= len(ascii_lowercase) else map(str, range(self.symbols))
        return (*_SPECIAL, *list(letters)[: self.symbols])

    @property
    def vocab_size(self) -> int:
        """V, without naming all tokens."""
        return len(_SPECIAL) + self.symbols

    @property
    def context(self) -> int:
        """The paper's 3 + 2 L_max."""
        return 3 + 2 * self.longest

    def rows(self, draw: Draw) -> dict[str, NDArray[np.int64]]:
        """See `Task.rows`; padding stands on the right."""
        length = self.shortest + draw.below(self.longest - self.shortest + 1)  # [B, 1]
        symbol = len(_SPECIAL) + draw.below(self.symbols, self.longest)  # [B, longest]
        place = np.arange(self.context)[None]  # [1, N]
        sep, eos = length + 1, 2 * length + 2
        in_copy = (place > sep) & (place < eos)
        source = np.where(place < sep, place - 1, place - sep - 1)  # which symbol stands here, if one does
        ids = np.take_along_axis(symbol, source.clip(0, self.longest - 1), 1)
        ids = np.where(place == 0, _BOS, np.where(place == sep, _SEP, np.where(place == eos, _EOS, ids)))
        ids = np.where(place > eos, _PAD, ids)
        labels = np.where(in_copy | (place == eos), ids, IGNORE)
        return {"input_ids": ids, "labels": labels, "attention_mask": (place <= eos).astype(np.int64)}


@dataclass(frozen=True)
class Parity(Task):
    """Parity* (section A.2 of the paper): bits, of which every other one is the parity of the random ones before it.

        <BOS> 1 1 0 1 1 0

    Bits are counted from 1. Those at odd positions are random. The one at an even position is the parity of all earlier
    odd ones, which is the XOR of the two bits before it (and at position 2, where there is but one, that bit). The loss
    is on the even positions.

    Random bits and their parities in turn.

    Args:
        bits: how many there are in a row; the paper does not give a number.
    """

    name: ClassVar[str] = "parity"

    bits: int = 64

    def __post_init__(self) -> None:
        at_least(self, bits=2)

    @property
    def tokens(self) -> tuple[str, ...]:
        """<BOS> and the two bits."""
        return ("<BOS>", "0", "1")

    @property
    def context(self) -> int:
        """<BOS> and the bits."""
        return 1 + self.bits

    def rows(self, draw: Draw) -> dict[str, NDArray[np.int64]]:
        """See `Task.rows`. The bit at position p, counted from 1, is token p: <BOS> is token 0."""
        random = draw.below(2, (self.bits + 1) // 2)
        ids = np.zeros((len(random), self.context), np.int64)
        ids[:, 1::2] = 1 + random
        ids[:, 2::2] = 1 + random.cumsum(1)[:, : self.bits // 2] % 2
        labels = np.full_like(ids, IGNORE)
        labels[:, 2::2] = ids[:, 2::2]
        return {"input_ids": ids, "labels": labels}


TASKS: dict[str, type[Task]] = {task.name: task for task in (VariableAssignment, Copy, Parity)}


def make_task(name: str, **settings: int | None) -> Task:
    """A task by its name; a mistyped name or setting gets the nearest right one."""
    if name not in TASKS:
        raise SelattnError(f"unknown task {name!r}; {advice(name, TASKS)}")
    known = [field.name for field in dataclasses.fields(TASKS[name])]
    for setting in settings:
        if setting not in known:
            raise SelattnError(f"task {name} has no setting {setting!r}; {advice(setting, known)}")
    return TASKS[name](**settings)


def main(argv: Sequence[str]) -> int:
    """`python -m lab show`: print samples of a task."""
    parser = Parser(
        prog="python -m lab show", description="A few samples of a task; tokens that have a loss stand in brackets."
    )
    parser.add_argument("name", help=", ".join(TASKS))
    parser.add_argument("--samples", type=_options.whole(1), default=3, metavar="N", help="how many (default: 3)")
    parser.add_argument("--seed", type=_options.seed, default=0, help="default: 0")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=N", help="a setting of it; repeatable")
    args = parser.parse_args(argv)
    console = Console(highlight=False)
    task = make_task(args.name, **dict(map(_setting, args.set)))
    console.print(f"{task}: vocabulary {task.vocab_size}, context {task.context}; [loss]", markup=False)
    samples = task.dataset(args.seed, args.samples)
    for number in range(args.samples):
        sample = samples[number]
        line = Text()
        for token, label in zip(task.render(sample["input_ids"]).split(), sample["labels"].tolist(), strict=True):
            line.append(*((f"[{token}]", "bold green") if label >= 0 else (token, ""))).append(" ")
        console.print(line)
    return 0


def _setting(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.isdecimal() or len(value) > 6:
        raise SelattnError(f"--set takes NAME=NUMBER, the number of at most 6 digits, not {text!r}")
    return name, int(value)
