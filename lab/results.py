"""docs/results.md, from the records alone: each claim, what was run, our number, the paper's, and a verdict."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.engine.records import LEAST, Cell, Claim, Reproduction, verdict
from lab.engine.tables import conditions, seeds_of, table_of, what_was_run
from lab.experiments import EXPERIMENTS, find_experiment
from lab.experiments.language import DISAGREES, SAME
from selattn.utils.files import write_json, write_text
from selattn.utils.records import read_body, read_record
from selattn.utils.tables import Table
from selattn.utils.typed import to_json

MARK = "<!-- Written by 'python -m lab results' from the records: do not edit. -->"
_HEAD = f"""# Results

{MARK}

Each claim of the paper, what was run for it, our number, the paper's, and a verdict. All of it comes from records in
`results/`, and `python -m lab results` writes this page from them; `python -m lab NAME` makes a record
([reproduction.md](reproduction.md)).

"holds" and "fails" need {LEAST} seeds that agree, and a mean that is further from the bound than their standard
deviation; else it is "too small to tell". Fewer seeds are called one run, or two, and only say whether they are as
claimed. Our models are small and young: a verdict is about them. After 3 million tokens two trainings of standard
attention that differ in their seed alone are further apart than most of what is compared here ([course](#course)), so
that one run says little.

In tables a number is the mean of the seeds (smallest to largest). *n of 3 without*: so many seeds have no such number,
because they are above that loss even with everything kept; the mean is of the others.
"""
_MORE = (
    "Table 2 has 2.63 for selective attention with d=12, Tables 4 and 6 have 2.6373 and 2.6372, which round to 2.64.",
    "Section 6.1 finds consistent improvements downstream; in Table 1 OpenBookQA is worse with d=20 and 26, and two "
    "other numbers are the same.",
)
_LONG = 16  # rows of a table that a reader has to ask for


def write_results(records: Path, page: Path) -> Path:
    """Write the page from the records, whose conclusions are drawn again first."""
    for record in _files(records):
        conclude(record)
    write_text(page, results_page(records))
    return page


def conclude(file: Path) -> bool:
    """Draw the conclusions of a record again with the code of now, in its file; True if any has changed.

    What was measured, and where and when, stays as it is.
    """
    record = read_body(file, Reproduction)
    now = find_experiment(record.experiment).concluded(record)
    if now == record:
        return False
    write_json(file, {**read_record(file), **to_json(now)})
    return True


def results_page(records: Path) -> str:
    """The page as a text: all verdicts at a glance, then each experiment with its claims and numbers."""
    found = all_records(records)
    names = list(dict.fromkeys(record.experiment for record in found))
    parts = [_HEAD, "## At a glance\n", _glance(found), "## Claims and numbers\n"]
    for name in names:
        of_it = [record for record in found if record.experiment == name]
        parts += [f"### {name}\n", f"{of_it[0].paper}: {of_it[0].sentence}.\n", *map(_section, of_it)]
    parts += ["## Where the paper disagrees with itself\n", *(f"- {each}" for each in (DISAGREES, SAME, *_MORE)), ""]
    missing = [each for each in EXPERIMENTS.values() if each.name not in names]
    if missing:
        parts.append("## What has not been run\n")
        parts.append("\n".join(f"- `{each.name}` ({each.paper}): {each.sentence}" for each in missing) + "\n")
    return "\n".join(parts)


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


def _glance(found: Sequence[Reproduction]) -> str:
    """A line for each record: how many of its claims have which verdict."""
    rows = []
    for record in found:
        said = _counted(Counter(verdict(claim, record.scale) for claim in record.claims))
        name = f"[{record.experiment}](#{record.experiment})"
        rows.append((name, record.paper, what_was_run(record), said or "nothing is claimed"))
    return Table(("experiment", "in the paper", "what was run", "verdicts"), rows).grid()


def _counted(verdicts: Mapping[str, int]) -> str:
    """Each verdict once, with how often; of how few runs is said once, too: `one run: as claimed (2), ...`."""
    groups: dict[str, list[str]] = {}
    for each, count in verdicts.items():
        runs, colon, found = each.rpartition(": ")
        groups.setdefault(runs + colon, []).append(f"{found} ({count})" if count > 1 else found)
    return "; ".join(runs + ", ".join(found) for runs, found in groups.items())


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
    lines = [f"**{how[:1].upper()}{how[1:]}.** Record: `{where}`.{_made(record)}\n"]
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
