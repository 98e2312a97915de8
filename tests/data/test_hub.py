"""The hub, with `load_dataset` replaced: what is asked for, and what is made of the rows. Nothing is downloaded."""

import socket
import time

import datasets
import pytest
from huggingface_hub import constants

from selattn.data import Reading, documents
from selattn.errors import SelattnError


@pytest.fixture
def hub(monkeypatch):
    """Records the calls and answers with `hub.rows`; an exception among the rows is raised when it is its turn."""

    class Hub:
        rows = ()
        calls = ()

        def load_dataset(self, *args, **kwargs):
            self.calls = (*self.calls, (args, kwargs))
            if isinstance(self.rows, Exception):
                raise self.rows
            return self.stream()

        def stream(self):
            for row in self.rows:
                if isinstance(row, Exception):
                    raise row
                yield row

    hub = Hub()
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    monkeypatch.setattr("selattn.data.sources._offline", lambda: False)
    return hub


@pytest.mark.parametrize(
    ("source", "split", "path", "config", "their_split", "revision"),
    [
        ("c4", "train", "allenai/c4", "en", "train", None),
        ("c4:realnewslike", "validation", "allenai/c4", "realnewslike", "validation", None),
        ("lm1b", "train", "billion-word-benchmark/lm1b", None, "train", "refs/convert/parquet"),
        ("lm1b", "validation", "billion-word-benchmark/lm1b", None, "test", "refs/convert/parquet"),
        ("hub:owner/name", "test", "owner/name", None, "test", None),
        ("hub:owner/name:part", "train", "owner/name", "part", "train", None),
    ],
)
def test_what_is_asked_for(hub, source, split, path, config, their_split, revision):
    hub.rows = [{"text": "one", "url": "x"}, {"text": " "}, {"text": "two"}]
    assert list(documents(source, split)) == ["one", "two"]
    assert hub.calls == (((path, config), {"split": their_split, "revision": revision, "streaming": True}),)


@pytest.mark.parametrize(
    ("source", "config"), [("wikitext", "wikitext-103-raw-v1"), ("wikitext:wikitext-2-raw-v1", "wikitext-2-raw-v1")]
)
def test_wikitext_lines_become_articles(hub, source, config):
    lines = ["", " = One = \n", "", " a \n", " = = Part = = \n", "", " = Two = \n", "", " b \n"]
    hub.rows = [{"text": line} for line in lines]
    assert list(documents(source)) == [" = One = \n\n a \n = = Part = = ", " = Two = \n\n b "]
    assert hub.calls[0][0] == ("Salesforce/wikitext", config)


def test_a_stream_is_read_no_further_than_asked(hub):
    hub.rows = [{"text": "one"}, {"text": "two"}, ConnectionError("never reached")]
    assert list(documents("c4", reading=Reading(limit=2))) == ["one", "two"]


@pytest.mark.parametrize(
    "rows",
    [
        ConnectionError("Couldn't reach\n'allenai/c4'"),
        ValueError("Bad split: nope"),
        RuntimeError("Dataset scripts are no longer supported"),
        [{"text": "one"}, ConnectionError("lost")],
    ],
    ids=["no network", "no such split", "a script", "lost on the way"],
)
def test_a_hub_that_fails_is_one_line(hub, rows):
    hub.rows = rows
    with pytest.raises(
        SelattnError, match=r"cannot read allenai/c4 from the Hugging Face hub: .*works offline"
    ) as error:
        list(documents("c4"))
    assert "\n" not in str(error.value)


def test_without_a_network_it_is_one_line_at_once(monkeypatch, capfd):
    """Nothing is tried again and again, and nothing is said of that."""

    def unknown(*args):
        raise socket.gaierror(-2, "Name or service not known")

    for place in (datasets.config, constants):
        monkeypatch.setattr(place, "HF_HUB_OFFLINE", False)  # and put back afterwards
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    began = time.monotonic()
    with pytest.raises(SelattnError, match=r"cannot read Salesforce/wikitext from the .* hub: .*works offline"):
        next(iter(documents("wikitext")))
    assert time.monotonic() - began < 10
    assert capfd.readouterr().err == ""
