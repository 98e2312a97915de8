"""`selattn zoo`: the small trained models of the checkout, or of $SELATTN_ZOO. Any command takes one as `zoo:NAME`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from selattn.cli._options import add_command

RECORD = "training_record.json"


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn zoo` and its options to the command line."""
    add_command(subparsers, "zoo", "the small trained models", __doc__)


def run(args: argparse.Namespace) -> int:
    """List the models."""
    from rich.console import Console

    from selattn.errors import SelattnError
    from selattn.models.zoo import PREFIX, no_models, zoo_models
    from selattn.utils.tables import Table

    models = zoo_models()
    if not models:
        raise SelattnError(no_models())
    rows = [(PREFIX + name, *facts(folder)) for name, folder in models.items()]
    console = Console(highlight=False)
    console.print(Table(("model", "trained on", "N", "tokens", "score", "MB"), rows, "zoo", left=[1], whole=[0]).rich())
    console.print("[dim]N: context; score: validation loss per token, or the share of right answers[/]")
    return 0


def facts(folder: Path) -> list[str]:
    """A row of the table, from the config and the training record of a model."""
    from selattn.training.record import TrainingRecord
    from selattn.utils.files import read_json
    from selattn.utils.records import read_body

    positions = read_json(folder / "config.json").get("max_position_embeddings")
    context = f"{positions:,}" if isinstance(positions, int) else "?"
    size = f"{sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f}"
    if not (folder / RECORD).is_file():  # a model of the user's own may come without a record
        return ["?", context, "?", "?", size]
    record = read_body(folder / RECORD, TrainingRecord)
    data, found = record.run["data"], record.evaluation["validation"]
    trained = Path(data["source"]).name if data["kind"] == "text" else data["kind"]
    score = f"{found.loss:.3f}" if found.accuracy is None else f"{found.accuracy:.1%}"
    return [trained, context, f"{record.tokens / 1e6:.1f}M", score, size]
