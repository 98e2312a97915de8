"""How a report was made: the command, the settings, the versions, the machine, as its record has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selattn.utils.records import Provenance
from selattn.views.html.blocks import Facts, Listing, Paragraph
from selattn.views.html.document import Section


def how_it_was_made(made: Provenance, settings: Mapping[str, Any], about: str = "") -> Section:
    """The last section of every report.

    Args:
        made: by which command, when, with what.
        settings: what was set, nested as it may be.
        about: a sentence on where everything is.
    """
    commit = made.commit or "not known: the package was installed outside a checkout"
    changed = " (the code had been changed since)" if made.dirty else ""
    run = {"date": made.date, "seed": made.seed, "commit": f"{commit}{changed}"}
    return Section(
        "How this was made",
        [
            Listing(made.command, "The command"),
            *([Paragraph(about, "note")] if about else []),
            Facts("Settings", settings),
            Facts("Run, versions and machine", {**run, **made.versions, **made.machine}),
        ],
    )
