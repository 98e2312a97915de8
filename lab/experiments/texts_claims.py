"""What the tables of texts say: the names of their rows, the questions that they answer text by text, and one table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lab.engine.experiment import TITLES
from lab.engine.pruning import GAIN
from lab.engine.records import Claim, Reproduction, Values, standard_error, verdict
from selattn.utils.tables import Table

WINDOW = "Window+4"
KEPT, MEAN = "kept", "mean of the texts"  # a policy; a column
AT_STANDARD, AT_OWN = "times less memory at the standard loss", f"times less memory within {GAIN} nats of its own"
OVER_ROWS = ": standard error over rows"
_CLEAR = ("holds", "fails")


@dataclass(frozen=True)
class Setting:
    """A model with what is in force: everything kept, or a policy with budgets; `how` tells where these are from."""

    kind: str
    policy: str = ""
    how: str = KEPT
    budgets: tuple[int, ...] | None = field(default=None, compare=False)

    @property
    def row(self) -> str:
        """Its name in the table."""
        return ", ".join(part for part in (TITLES.get(self.kind, self.kind), self.policy, self.how) if part)


def same(size: int) -> str:
    """How budgets are chosen: the same everywhere."""
    return f"{size} in every layer"


def searched(size: int, policy: str = "") -> str:
    """How budgets are chosen: by a search; `policy` is named if the search was with another one."""
    return f"{size} a layer, searched{policy and ' for '}{policy}"


@dataclass(frozen=True)
class Question:
    """A claim that is made of each text: it holds where the values, one for each seed, are above `than`."""

    text: str
    what: str
    values: dict[str, Values]
    than: float = 0.0
    digits: int = 3

    def claim(self, name: str, where: str = "") -> Claim:
        """Of one text, or of the mean of all."""
        return Claim(self.text, self.values[name], f"{self.what}, {where or name}", than=self.than, digits=self.digits)

    def verdicts(self, scale: str) -> dict[str, str]:
        """Of each text; the mean is left out."""
        return {name: verdict(self.claim(name), scale) for name in self.values if name != MEAN}


def questions(record: Reproduction) -> Iterator[Question]:
    """What a table of texts answers, of each kind of model that is held against the first."""
    cells = {(cell.row, cell.column): cell.values for cell in record.cells}
    rows, at = {row for row, _ in cells}, record.details["at"]
    base, *kinds = record.details["policies"]
    whole, title_of = Setting(base).row, {kind: TITLES.get(kind, kind) for kind in (base, *kinds)}
    texts = [column for row, column in cells if row == whole]
    rivals = [Setting(base, name, searched(at)).row for name in record.details["policies"][base]]

    def less(row: str) -> dict[str, Values]:
        return {name: tuple(-(value or 0.0) for value in cells[row, name]) for name in texts}

    def factor(row: str) -> dict[str, Values]:
        return {name: tuple(value or 0.0 for value in cells[row, name]) for name in texts}

    for kind in kinds:
        title, pruned = title_of[kind], Setting(kind, "F", searched(at)).row
        below = f"nats below {title_of[base]} attention with everything kept"
        first = f"{title} attention".capitalize()
        yield Question(
            f"With everything kept, {title} attention has a smaller loss than {title_of[base]} attention.",
            below,
            less(f"{Setting(kind).row}, less {whole}"),
        )
        if pruned not in rows:
            continue
        yield Question(
            f"Pruned by F to {at} tokens a layer, {title} attention has a smaller loss than whole {title_of[base]} "
            "attention.",
            below,
            less(f"{pruned}, less {whole}"),
        )
        if rivals:
            best = {name: tuple(map(min, *(cells[rival, name] for rival in rivals))) for name in texts}
            gains = {name: _less(best[name], cells[pruned, name]) for name in texts}
            yield Question(
                f"Pruned by F to {at} tokens a layer, {title} attention has a smaller loss than {title_of[base]} "
                "attention with as many, under its best policy.",
                f"nats below {title_of[base]} attention under the policy that is best on the text",
                gains,
            )
        for row, how in (
            (pruned, "budgets searched for F"),
            (Setting(kind, "F", searched(at, WINDOW)).row, f"budgets searched for {WINDOW}"),
            (Setting(kind, "F", same(at)).row, "the same K in every layer"),
        ):
            if f"{row}, less {WINDOW}" in rows:
                yield Question(
                    f"In {title} attention F evicts better than {WINDOW}: {how}.",
                    f"nats of loss that F saves beside {WINDOW}, the same budgets",
                    less(f"{row}, less {WINDOW}"),
                )
        row = Setting(kind, "F", "").row
        yield Question(
            f"{first} pruned by F has the {title_of[base]} loss with less than half the memory.",
            AT_STANDARD,
            factor(f"{row}, {AT_STANDARD}"),
            2.0,
            1,
        )
        yield Question(
            f"{first} pruned by F keeps its own loss with less than half the memory.",
            AT_OWN,
            factor(f"{row}, {AT_OWN}"),
            2.0,
            1,
        )


def _less(these: Sequence[float | None], those: Values) -> Values:
    return tuple(None if a is None or b is None else a - b for a, b in zip(these, those, strict=True))


def conclude(record: Reproduction) -> Reproduction:
    """What holds on the mean of the texts, and on the text where it holds least."""
    claims = []
    for question in questions(record):
        means = {name: statistics.fmean(x or 0.0 for x in v) for name, v in question.values.items() if name != MEAN}
        worst = min(means, key=lambda name: means[name])
        claims += [question.claim(MEAN), question.claim(worst, f"where it is least, {worst}")]
    return replace(record, claims=tuple(claims), notes=_notes(record.settings))


def _notes(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{settings['rows']} rows of each text, the same for all models, of documents that no model was trained on. "
        f"Documents were joined where too few fill a row: {', '.join(settings['joined']) or 'nowhere'}.",
        f"Budgets are searched on {settings['search_rows']} rows of the search part, by one procedure for every model "
        "and policy; 'searched for' names the policy if it is another. Factors follow these budgets; 'none', in claims "
        "0: above that loss with everything kept.",
        "Differences are paired by row and seed; the standard error is over the rows of one text, for each seed.",
        "What is read is the loss with another answer in its place less the loss: of a made-up name in a sentence, and "
        "of random pairs of rare tokens at several distances.",
    )


def sorted_questions(record: Reproduction) -> dict[str, list[str]]:
    """Each question as a line, under where it holds: on every text, on some, on none; or too early to tell."""
    found: dict[str, list[str]] = {"on every text": [], "on some": [], "fails": [], "too early to tell": []}
    for question in questions(record):
        verdicts = question.verdicts(record.scale)
        named = {said: [name for name in verdicts if verdicts[name] == said] for said in _CLEAR}
        pointing = sum(statistics.fmean(x or 0.0 for x in question.values[name]) > question.than for name in verdicts)
        numbers = f"{_with_error(question.values[MEAN], question.digits)} {question.what}, {MEAN}"
        if len(named["holds"]) == len(verdicts):
            where, said = "on every text", numbers
        elif named["holds"] or named["fails"]:
            where = "on some" if named["holds"] else "fails"
            parts = [f"{said} on {', '.join(names)}" for said, names in named.items() if names]
            open_ones = len(verdicts) - sum(map(len, named.values()))
            parts += [f"too early to tell on the other {open_ones}"] if open_ones else []
            said = f"{'; '.join(parts)} ({numbers})"
        else:
            where, said = "too early to tell", f"as claimed on {pointing} of {len(verdicts)} ({numbers})"
        found[where].append(f"{question.text} {said[:1].upper()}{said[1:]}.")
    return found


def texts_table(record: Reproduction) -> Table:
    """Texts by models by policies: losses less that of the first model with everything kept, and standard errors.

    Of several seeds the error is over seeds, of one over the rows of a text. A number is bold if the verdict on it is
    clear.
    """
    cells = {(cell.row, cell.column): cell.values for cell in record.cells}
    base, at = next(iter(record.details["policies"])), record.details["at"]
    whole = Setting(base).row
    texts = [column for row, column in cells if row == whole]
    body = [(whole, *(_with_error(cells[whole, text], 3) for text in texts))]
    for kind, names in record.details["policies"].items():
        for policy, how in [("", KEPT), *((name, how) for name in names for how in (searched(at), same(at)))]:
            row = f"{Setting(kind, policy, how).row}, less {whole}"
            if (row, texts[0]) in cells:
                shown = [
                    _with_error(cells[row, text], 3, cells.get((f"{row}{OVER_ROWS}", text)), bold=True)
                    for text in texts
                ]
                body.append((row.removesuffix(f", less {whole}"), *shown))
    for row in dict.fromkeys(row for row, _ in cells if ": not run (" in row):
        body.append((row, *("not run" for _ in texts)))
    return Table(("", *texts), body)


def _with_error(values: Values, digits: int, over_rows: Values | None = None, bold: bool = False) -> str:
    """The mean over the seeds with its standard error, which is over the rows if there is one seed."""
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    error = standard_error(known) if len(known) > 1 else over_rows[0] if over_rows else None
    text = f"{statistics.fmean(known):+.{digits}f}" if bold else f"{statistics.fmean(known):.{digits}f}"
    text = f"**{text}**" if bold and verdict(Claim("", values, ""), "") in _CLEAR else text
    return text if error is None else f"{text} ± {error:.{digits}f}"
