"""The report of a search for budgets."""

from __future__ import annotations

from collections.abc import Sequence

from selattn.pruning.record import SearchRecord
from selattn.utils.records import Provenance
from selattn.utils.typed import to_json
from selattn.views import plot
from selattn.views.html.blocks import Headline, Paragraph, Picture, Table
from selattn.views.html.document import Report, Section
from selattn.views.html.provenance import how_it_was_made


def search_report(found: SearchRecord, made: Provenance) -> Report:
    """How few tokens each layer can keep, what that costs, and the whole path."""
    reported = found.report
    settings = {name: to_json(getattr(found, name)) for name in ("until", "policy", "procedure", "text", "rows")}
    return Report(
        title=f"{found.model}: how little it can remember",
        lead=(
            "Every layer may keep so many tokens of the text and no more. The search takes tokens away where that "
            "hurts least, until the threshold is reached."
        ),
        blocks=[
            Headline(
                [
                    (f"{found.memory_factor:.1f}x", "less memory for keys and values"),
                    (f"{reported['pruned']:.4f}", "nats per token on unseen text with these budgets"),
                    (f"{reported['unpruned']:.4f}", "without pruning"),
                    *([(f"{reported['baseline']:.4f}", "of the baseline")] if "baseline" in reported else []),
                ]
            )
        ],
        sections=[
            Section("What it costs", [losses(found), *_floor(found)]),
            Section("What each layer keeps", [budgets(found.budgets, found.procedure.context)]),
            Section("The path of the search", [path(found)]),
            how_it_was_made(made, settings),
        ],
    )


def losses(found: SearchRecord) -> Table:
    """The losses on the search set and on rows that the search has not seen."""
    rows = [
        ["whole cache", f"{found.path[0].loss:.4f}", f"{found.report['unpruned']:.4f}"],
        ["with these budgets", f"{found.search_loss:.4f}", f"{found.report['pruned']:.4f}"],
    ]
    if "baseline" in found.report:
        rows.append(["baseline, whole cache", f"{found.search_baseline:.4f}", f"{found.report['baseline']:.4f}"])
    tokens = found.tokens
    head = ["loss, nats per token", f"search set ({tokens.search:,} tokens)", f"unseen ({tokens.report:,} tokens)"]
    return Table(head, rows, strong=[1])


def budgets(found: Sequence[int], context: int) -> Table:
    """K of each layer."""
    rows = [[str(layer), f"{k:,}", f"{min(k, context) / context:.1%}"] for layer, k in enumerate(found)]
    held = sum(min(k, context) for k in found)
    total = ["all", f"{sum(found):,}", f"{held / (len(found) * context):.1%}"]
    return Table(["layer", "K, tokens", f"of N = {context:,}"], [*rows, total], strong=[len(rows)])


def path(found: SearchRecord) -> Picture:
    """The figure of the path."""
    return Picture(
        plot.search(found),
        "Above, the loss as memory shrinks to the right; below, what each layer keeps. The mark is what was chosen.",
        f"The loss along the search, up to {found.memory_factor:.1f} times less memory.",
    )


def _floor(found: SearchRecord) -> list[Paragraph]:
    if not found.at_floor:
        return []
    why = "The search ended because no layer could give more, not because the threshold was reached."
    return [Paragraph(why, "note")]
