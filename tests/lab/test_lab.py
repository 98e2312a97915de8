"""What was measured on a text counts for that text alone, whatever its file is called."""

import dataclasses
from types import SimpleNamespace

import pytest

from lab.engine import pruning
from lab.engine.lab import Lab, Memory
from lab.engine.progress import Overview
from lab.engine.store import Store
from lab.experiments import pictures
from lab.scales import find_scale
from selattn.models.loading import load
from selattn.utils.distributed import Team
from selattn.utils.journal import Parts
from tests.evaluation.folders import text_file


@pytest.fixture(scope="module")
def loaded():
    return load("zoo:memory")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    return text_file(tmp_path / "text.txt", documents=80)


def make_lab(source, memory=None, **data):
    scale = find_scale("laptop", str(source))
    scale = dataclasses.replace(scale, data=dataclasses.replace(scale.data, **{"validation": 0.3, **data}))
    return Lab(scale, (0,), Store(source.parent / "store"), {}, memory, Team(), Overview())


def append_to(file):
    """The same name, and more documents."""
    file.write_text(file.read_text() + "\n\n" + "\n\n".join(f"one more text, of number {i}" for i in range(40)))


def test_the_checksum_is_of_the_held_out_text_and_of_how_it_is_read(source, loaded):
    found = make_lab(source).tokens(loaded)
    copy = source.with_name("copy.txt")
    copy.write_bytes(source.read_bytes())
    assert make_lab(copy).tokens(loaded) == found
    for data in ({"validation": 0.5}, {"limit": 3}):
        assert make_lab(source, **data).tokens(loaded) != found
    append_to(source)
    assert make_lab(source).tokens(loaded) != found


def test_what_is_measured_again_when_the_text_has_changed(source, loaded, monkeypatch):
    measured = []

    def measure(*args, **kwargs):
        measured.append(kwargs.get("out"))
        return []

    for place, name in ((pruning, "prune"), (pruning, "log_perplexity"), (pruning, "batches"), (pictures, "full_rows")):
        monkeypatch.setattr(place, name, measure)
    memory = Memory(Parts(None, Team()))
    model = SimpleNamespace(model=loaded, need=SimpleNamespace(run=SimpleNamespace(name="it", seed=0)))

    def everything(**data):
        lab = make_lab(source, memory, **data)
        pruning.search(lab, model)
        pruning.loss_with(lab, loaded, (8, 8, 8))
        pictures.shares_by_text(lab, model, 4)
        found, measured[:] = list(measured), []
        return found

    first = everything()
    assert len(first) == 4
    assert everything() == first[:1]  # a search has a folder of its own, in which it goes on
    for second in (everything(limit=5), append_to(source) or everything()):
        assert len(second) == 4
        assert second[0] != first[0]
