"""Datasets of the Hugging Face hub, read as a stream: nothing is downloaded that is not used."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

from selattn.data.files import join_articles, text_of
from selattn.errors import SelattnError, require, shortened

_T = TypeVar("_T")


@dataclass(frozen=True)
class HubSource:
    """Where a dataset lives.

    Attributes:
        path: owner and name.
        config: one of its configurations, or None for the only one.
        revision: None for the newest.
        splits: ours to its, where the names differ.
        lines: whether rows are lines of articles that have to be joined.
    """

    path: str
    config: str | None = None
    revision: str | None = None
    splits: dict[str, str] = field(default_factory=dict)
    lines: bool = False


NAMED = {
    "c4": HubSource("allenai/c4", "en"),
    "wikitext": HubSource("Salesforce/wikitext", "wikitext-103-raw-v1", lines=True),
    # The repository holds a loading script, which `datasets` no longer runs; the hub's own conversion of it is data
    # only. lm1b has no validation part: its held-out part is called test.
    "lm1b": HubSource("billion-word-benchmark/lm1b", None, "refs/convert/parquet", {"validation": "test"}),
}
PREFIX = "hub:"


def hub_source(source: str) -> HubSource | None:
    """`c4`, `wikitext`, `lm1b`, each also with `:CONFIG` behind it, or `hub:OWNER/NAME[:CONFIG]`; None for no such."""
    if source.startswith(PREFIX):
        path, _, config = source.removeprefix(PREFIX).partition(":")
        if not path.strip("/ "):
            raise SelattnError(f"{shortened(source)!r} names no dataset: write {PREFIX}OWNER/NAME, as the hub has it")
        return HubSource(path, config or None)
    name, _, config = source.partition(":")
    known = NAMED.get(name)
    if known is None or not config:
        return known
    return HubSource(known.path, config, known.revision, known.splits, known.lines)


def read_hub(source: HubSource, split: str, column: str) -> Iterator[str]:
    """The documents of a split that are not blank, in the hub's order."""
    rows = _loading(source, lambda: _load(source, source.splits.get(split, split)))
    texts = (text_of(row, column, source.path) for row in _guarded(source, rows))
    documents = join_articles(texts) if source.lines else texts
    return (document for document in documents if document.strip())


def _load(source: HubSource, split: str) -> Iterable[dict[str, Any]]:
    require("datasets")
    import datasets

    if _offline():  # else it would try for half a minute, and say so each time; what is in its cache is read
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    return datasets.load_dataset(source.path, source.config, split=split, revision=source.revision, streaming=True)


def _offline() -> bool:
    """Whether the hub has no address here; a proxy may know it all the same."""
    try:
        getproxies() or socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return True
    return False


def _guarded(source: HubSource, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A stream can fail at any row, not only at its beginning."""
    stream = iter(rows)
    end: dict[str, Any] = {}
    while (row := _loading(source, lambda: next(stream, end))) is not end:
        yield row


def _loading(source: HubSource, load: Callable[[], _T]) -> _T:
    """What the hub can do wrong, in one line: no network, no such dataset (both OSError), configuration or split."""
    try:
        return load()
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, SelattnError):
            raise
        reason = shortened(" ".join(str(error).split()), 400)
        raise SelattnError(
            f"cannot read {shortened(source.path)} from the Hugging Face hub: {reason}; "
            "a local file or folder works offline"
        ) from error
