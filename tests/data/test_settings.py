"""Which settings for reading matter to a source: changing one of the others changes no document."""

import gzip
import json

import pytest

from selattn.data import Reading, documents
from selattn.data.sources import settings_of

CHANGED = {"column": "body", "separator": "line", "validation": 0.9}


@pytest.fixture
def sources(tmp_path):
    text = "\n\n".join(f"one {number}\ntwo" for number in range(20))
    rows = "".join(json.dumps({"text": f"one {number}", "body": f"two {number}"}) + "\n" for number in range(20))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.jsonl").write_text(rows)
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write(text)
    for folder, names in {"plain": ("a", "b"), "split": ("train", "validation")}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.txt").write_text(text)
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "a.txt").write_text(text)
    (tmp_path / "both" / "b.jsonl").write_text(rows)
    return tmp_path


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "b.txt.gz", "plain", "split", "both"])
def test_the_others_change_nothing(sources, name):
    def read(**changes):
        return list(documents(sources / name, "validation", Reading(**{"validation": 0.5, **changes})))

    matter = {setting for setting in CHANGED if read(**{setting: CHANGED[setting]}) != read()}
    assert settings_of(str(sources / name)) == matter


def test_sources_that_are_no_files(sources):
    assert settings_of("c4") == settings_of("hub:a/b") == {"column"}
    assert settings_of("embedded") == {"validation"}
    assert settings_of(str(sources / "nowhere.txt")) == set(CHANGED)
