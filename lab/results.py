"""docs/results.md and docs/results/NAME.md, from the records alone: a row for each claim, a page for each experiment.

Verdicts are those of `lab.engine.records`. A claim of fewer than 3 seeds, or with a caveat, is too early to tell here.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from lab.engine.records import LEAST, Cell, Claim, Reproduction, verdict
from lab.engine.tables import conditions, seeds_of, table_of, what_was_run
from lab.experiments import EXPERIMENTS, find_experiment
from lab.experiments.language import DISAGREES, SAME
from lab.experiments.texts_claims import sorted_questions, texts_table
from selattn.utils.files import write_json, write_text
from selattn.utils.records import read_body, read_record
from selattn.utils.tables import Table
from selattn.utils.typed import to_json

MARK = "<!-- Written by 'python -m lab results' from the records: do not edit. -->"
EARLY = "too early to tell"
UNMEASURED = "not measured"
MARKS = 5  # verdicts of fewer seeds than LEAST
NOT_RANDOM = "nothing is random"
_HEAD = f"""# Results

{MARK}

One row for each claim of the paper, with what our records say about it today. `python -m lab results` writes this page
and the pages behind it from `results/`; `python -m lab NAME` carries out an experiment
([reproduction.md](reproduction.md)).

- **holds** and **fails**: at least {LEAST} trainings with different seeds agree, and the standard error of their mean
  is at most a third of its distance from the bound. At most {MARKS} verdicts need fewer, because nothing about the
  number is random: these are marked so.
- **{EARLY}**: fewer seeds, or seeds that disagree. The words behind it say which way they point.

Our models are small and young, and the verdicts are about them: d is the number of layers and of heads, and the paper's
models have d=12 and more. After 3 million tokens, two trainings of the same model that differ only in their seed are
further apart than most of what is compared here ([course](results/course.md)), so that one run says little. Losses
are measured on held-out documents.
"""
_READING = (
    "In the tables, a number is the mean of the seeds (smallest to largest). *n of 3 without*: n seeds have no such "
    "number, because they are above that loss even with everything kept; the mean is of the others. "
    "[All results](../results.md) say what the verdicts mean.\n"
)
_MORE = (
    "Table 2 has 2.63 for selective attention with d=12, Tables 4 and 6 have 2.6373 and 2.6372, which round to 2.64.",
    "Section 6.1 finds consistent improvements downstream; in Table 1 OpenBookQA is worse with d=20 and 26, and two "
    "other numbers are the same.",
)
# Claims and caveats that need the page of their experiment to be understood, in words that do not.
_CLEARER = {
    "It solves sequences with only 2 different values, too.": "Selective attention solves Variable Assignment with "
    "only 2 different values, which it never saw in training.",
    "Standard attention does not generalize as well.": "On Variable Assignment with only 2 different values, which "
    "neither saw in training, standard attention is worse than selective.",
    "Selective attention learns Variable Assignment far sooner.": "Selective attention learns Variable Assignment far "
    "sooner than standard attention.",
    "The gap grows in training.": "The gap between selective and standard attention grows in training.",
    "It still grows in the last third.": "The gap between selective and standard attention still grows in the last "
    "third of training.",
    "The shift helps (d=3).": "Selection works better if a token's own row is not affected by what it selects (d=3).",
    "Some layer persists the full stops.": "Some layer keeps full stops more often than other tokens.",
    "The larger a layer's budget, the smaller its F.": "The larger a layer's budget, the less it masks.",
    "for it reads none with a whole cache": "this model does not read the name even with a whole cache",
    "of models too young to say more": "but the models are too young to say more",
}
for _model in ("Standard attention", "Selective attention", "Selective attention with the memory loss"):
    _CLEARER[f"{_model} copies most names whole."] = f"{_model} copies most rare names from far back whole."
for _model in ("Selective attention", "Selective attention with the memory loss"):
    for _times in (4, 8, 16):
        _CLEARER[f"{_model} still reads it, pruned {_times} times."] = (
            f"{_model} still reads a name from far back with {_times} times less memory."
        )
_LONG = 16  # rows of a table that a reader has to ask for
_POSITIONS = re.compile(r",? ?\b(?:rotary|learned positions)(?=[.:)]|$)")
_PREFIX = re.compile(r"(At [^:]+): ")  # the setting of a claim that is made in several


def write_results(records: Path, page: Path) -> Path:
    """Write the pages from the records, whose conclusions are drawn again first."""
    for record in _files(records):
        conclude(record)
    written = results_pages(records)
    for path, text in written.items():
        write_text(page.parent / path, text)
    for file in page.with_suffix("").glob("*.md"):
        if file.relative_to(page.parent).as_posix() not in written and MARK in file.read_text():
            file.unlink()  # of an experiment that has no record any more
    return page


def conclude(file: Path) -> bool:
    """Draw the conclusions of a record again with today's code, in its file; True if any has changed.

    What was measured, and where and when, stays as it is.
    """
    record = read_body(file, Reproduction)
    now = find_experiment(record.experiment).concluded(record)
    if now == record:
        return False
    write_json(file, {**read_record(file), **to_json(now)})
    return True


def results_pages(records: Path) -> dict[str, str]:
    """results.md, with a row for each claim, and a page for each experiment that has a record."""
    read = all_records(records)
    pages = {"results.md": _overview(read)}
    for name, group in groupby(read, key=lambda record: record.experiment):
        of_it = list(group)
        title = f"# {name}\n\n{MARK}\n\n{of_it[0].paper}: {of_it[0].sentence}.\n"
        pages[f"results/{name}.md"] = "\n".join([title, *map(_section, of_it), _READING])
    return pages


def _overview(read: Sequence[Reproduction]) -> str:
    """All claims at a glance: those of the paper, then the questions that it leaves open."""
    papers = _rows(record for record in read if not record.paper.startswith("open"))
    opened = _rows(record for record in read if record.paper.startswith("open"))
    counts = {each: sum(row[1].startswith(each) for row in papers) for each in _ORDER}
    held, failed, early, unmeasured = (counts[each] for each in _ORDER)
    rest = f", {unmeasured} are {UNMEASURED}" if unmeasured else ""
    parts = [_HEAD, *_other_texts(read), "## The paper's claims\n"]
    parts.append(f"{held} of {len(papers)} hold, {failed} fail{rest}, and {early} are {EARLY}.\n")
    questions = "## Questions that the paper leaves open\n"
    parts += [Table(_COLUMNS, papers).grid(), questions, Table(_OPEN, opened).grid()]
    if numbers := [record for record in read if not record.claims]:
        names = dict.fromkeys(f"[{each.experiment}](results/{each.experiment}.md) ({each.paper})" for each in numbers)
        parts.append(f"Numbers without a claim: {', '.join(names)}.\n")
    parts += ["## Where the paper disagrees with itself\n", *(f"- {each}" for each in (DISAGREES, SAME, *_MORE)), ""]
    there = {record.experiment for record in read}
    if missing := [each for each in EXPERIMENTS.values() if each.name not in there]:
        parts.append("## Not run yet\n")
        parts.append("\n".join(f"- `{each.name}` ({each.paper}): {each.sentence}" for each in missing) + "\n")
    return "\n".join(parts)


def _other_texts(read: Sequence[Reproduction]) -> list[str]:
    """What travels: the questions of the largest table of texts, by where they hold, and the table."""
    tables = [record for record in read if record.experiment in ("texts", "texts-pair", "texts-whole")]
    if not tables:
        return []
    record = max(tables, key=lambda each: (len(each.seeds), len(each.cells)))
    texts = record.settings["tokens"].keys() - {"search"}
    count = len(record.seeds)
    lines = [
        "## On other texts\n",
        f"Models that were trained on a mixture of texts, measured on {len(texts)} texts: held-out parts of what they "
        f"were trained on, and two sources of which they saw nothing ({conditions(record)}). "
        f"[details](results/{record.experiment}.md), "
        f"[record](../results/reproduce/{record.scale}/{record.experiment}.json)\n",
    ]
    for where, said in sorted_questions(record).items():
        title = where.capitalize() if where.startswith(("fails", "too")) else f"Holds {where}"
        lines += [f"### {title}\n", *(f"- {each}" for each in said or ["Nothing."]), ""]
    errors = "over the seeds" if count > 1 else "over the rows of a text"
    lines += [
        "### Texts, models and policies\n",
        "Loss in nats per token; below the first row, less that of the first row, paired by row and seed. After ± "
        f"stands the standard error {errors}; a difference on which a verdict is possible is bold. A cache "
        "of a policy keeps as many tokens in every layer, or as many on average, in budgets that were searched for "
        "that model and policy on other documents.\n",
        texts_table(record).grid(),
    ]
    return lines


_COLUMNS = ("claim", "verdict", "seeds", "trained for", "text", "in the paper", "evidence")
_OPEN = ("claim", "verdict", "seeds", "trained for", "text", "question", "evidence")
_ORDER = ("**holds**", "**fails**", EARLY, UNMEASURED)


def _rows(records: Iterable[Reproduction]) -> list[tuple[str, ...]]:
    """Those of the claims of records; what holds comes first."""
    rows = [row for record in records for row in _rows_of(record)]
    return sorted(rows, key=lambda row: next(i for i, each in enumerate(_ORDER) if row[1].startswith(each)))


def _rows_of(record: Reproduction) -> list[tuple[str, ...]]:
    """A row for each claim; one for all settings in which it is made, if the verdict is the same in all."""
    groups: dict[str, list[Claim]] = {}
    for claim in record.claims:
        groups.setdefault(_PREFIX.sub("", _POSITIONS.sub("", claim.text)), []).append(claim)
    rows = []
    for text, claims in groups.items():
        if len({_short(claim, record.scale).partition(":")[0] for claim in claims}) > 1:
            rows += [_row(claim.text, [claim], record) for claim in claims]
        else:
            settings = [_POSITIONS.sub("", match[1]).lower() for each in claims if (match := _PREFIX.match(each.text))]
            before = ", ".join(dict.fromkeys(settings))
            rows.append(_row(f"{before.capitalize()}: {text}" if before else text, claims, record))
    return rows


def _row(text: str, claims: Sequence[Claim], record: Reproduction) -> tuple[str, ...]:
    where = record.earlier or f"results/reproduce/{record.scale}/{record.experiment}.json"
    evidence = f"[details](results/{record.experiment}.md), [record](../{where})"
    paper = record.paper.removeprefix("open: ")
    return _CLEARER.get(text, text), _said(claims, record.scale), _runs(claims), *_trained(record), paper, evidence


def _short(claim: Claim, scale: str) -> str:
    """holds, fails, or too early to tell, with which way it points."""
    found = verdict(replace(claim, caveat=""), scale)
    if found in ("holds", "fails"):
        if not claim.caveat:
            return f"**{found}**"
        found = "as claimed" if found == "holds" else "against the claim"
    caveat = _CLEARER.get(claim.caveat, claim.caveat)
    if found == UNMEASURED:
        return f"{UNMEASURED}: {caveat}" if caveat else found
    said = found.removeprefix(EARLY).strip(" ()").rpartition(": ")[2] or "the seeds disagree, or nearly"
    return f"{EARLY}: {said}" + (f", {caveat}" if caveat else "")


def _said(claims: Sequence[Claim], scale: str) -> str:
    said = [_short(claim, scale) for claim in claims]
    if len(set(said)) == 1:
        return said[0]
    parts = [f"{each.removeprefix(f'{EARLY}: ')} in {said.count(each)}" for each in dict.fromkeys(said)]
    return f"{EARLY}: {', '.join(parts)} of {len(said)} settings"


def _runs(claims: Sequence[Claim]) -> str:
    if claims[0].exact:
        return NOT_RANDOM
    count = len(claims[0].values)
    return "one run" if count == 1 else f"{count} seeds"


def _trained(record: Reproduction) -> tuple[str, str]:
    """The tokens or steps of a record's models, and what they read; of a table of texts, how many it measures on."""
    words = what_was_run(record).split(", ")
    lengths = [each for each in words if re.search(r"\b(?:tokens|steps)\b", each)]
    if tokens := record.settings.get("tokens"):
        words[0] = f"{words[0]}; {len(tokens) - 1} texts"
    text = "sequences of the task" if words[0][:1].isdigit() else words[0]
    return ", ".join(lengths), "" if words[0] in lengths else text


def all_records(records: Path) -> list[Reproduction]:
    """Those of the experiments, the largest scale first, and those of before; a smoke test shows nothing."""
    found = [read_body(file, Reproduction) for file in _files(records)]
    found += earlier_records(records)
    order = list(EXPERIMENTS)
    return sorted(found, key=lambda record: (order.index(record.experiment), record.earlier is not None))


def earlier_records(records: Path) -> list[Reproduction]:
    """The records of numbers that other commands measured before there were experiments."""
    return [read_body(file, Reproduction) for file in sorted((records / "earlier").glob("*.json"))]


def _files(records: Path) -> list[Path]:
    found = (records / scale / f"{name}.json" for scale in ("paper", "laptop") for name in EXPERIMENTS)
    return [file for file in found if file.is_file()]


def _claims(record: Reproduction) -> str:
    of = "seeds" if "values" not in record.settings else "pairs"
    rows = [(claim.text, _ours(claim, of), _papers(claim), verdict(claim, record.scale)) for claim in record.claims]
    return Table(("claim", "ours", "the paper's", "verdict"), rows).grid()


def _ours(claim: Claim, of: str) -> str:
    """The mean and the range, of how many seeds, and what the number is."""
    known = [value for value in claim.values if value is not None]
    if not known:
        return f"none ({claim.what})"
    mean, low, high = (f"{value:,.{claim.digits}f}" for value in (statistics.fmean(known), min(known), max(known)))
    spread = f" ({low} to {high}, {len(known)} {of})" if len(known) > 1 else "" if claim.exact else " (one run)"
    return f"{mean}{spread}: {claim.what}"


def _values(claim: Claim, record: Reproduction) -> str:
    """Every seed's own number of a claim."""
    return seeds_of(Cell("", "", claim.values, digits=claim.digits), record.values)


def _papers(claim: Claim) -> str:
    return "" if claim.paper is None else f"{claim.paper:g}"


def _section(record: Reproduction) -> str:
    """The claims, the table, every seed's own number, and where all of it comes from."""
    where = record.earlier or f"results/reproduce/{record.scale}/{record.experiment}.json"
    table = table_of(record)
    how = conditions(record)
    lines = [f"**{how[:1].upper()}{how[1:]}.** Record: [{where}](../../{where}).{_made(record)}\n"]
    if record.claims:
        lines.append(_claims(record))
    if len(table.rows) > _LONG:
        lines.append(_folded(f"All {len(table.rows)} rows", [table.grid()]))
    elif table.rows:
        lines.append(table.grid())
    if table.notes:
        lines.append("\n".join(f"- {note}" for note in table.notes) + "\n")
    if len(record.values) > 1:
        seeds = [f"- {cell.row}, {cell.column}: {seeds_of(cell, record.values)}" for cell in record.cells]
        seeds += [f"- {claim.text} {_values(claim, record)}" for claim in record.claims if not claim.exact]
        lines.append(_folded("Every seed", ["\n".join(seeds) + "\n"]))
    return "\n".join(lines)


def _folded(title: str, parts: Sequence[str]) -> str:
    """What a reader has to open."""
    return "\n".join([f"<details><summary>{title}</summary>\n", *parts, "</details>\n"])


def _made(record: Reproduction) -> str:
    """The commits and the text that its models were trained with."""
    commits = sorted({str(model.commit)[:10] for model in record.models})
    texts = sorted({model.data_checksums["train"][:10] for model in record.models if "train" in model.data_checksums})
    found = f" Models of commit {', '.join(commits)}" if commits else ""
    return f"{found}, training tokens {', '.join(texts)}." if texts else f"{found}." if found else ""
