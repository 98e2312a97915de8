"""Figures are written whole, in the format of their name."""

import re

import pytest
from matplotlib.figure import Figure

from selattn.errors import SelattnError
from selattn.pruning import Step
from selattn.views import plot
from selattn.views.plot.curves import path_of_search
from selattn.views.plot.style import shades, write_figure

PATH = [
    Step(0, None, (16, 16), 2.0, 1.0),
    Step(1, 0, (8, 16), 2.01, 32 / 24),
    Step(2, 1, (8, 8), 2.2, 2.0),
]


def record(*losses):
    points = [{"kv_size": 2.0 ** (5 - i), "loss": {"text": loss}} for i, loss in enumerate(losses)]
    return {
        "context": 64,
        "texts": {"text": {}},
        "baseline": {"name": "standard", "loss": {"text": 2.1}},
        "curves": [{"name": "a", "points": points}, {"name": "b", "points": points[:1]}],
    }


def test_the_path_of_a_search(tmp_path):
    write_figure(path_of_search(PATH, PATH[1], 2.1, "title"), tmp_path / "a" / "path.svg")
    text = (tmp_path / "a" / "path.svg").read_text()
    assert text.startswith("<?xml")
    assert words(text) >= {"title", "threshold 2.1000", "chosen: 1.3 times less", "1", "2", "8", "16", "layer", "0"}
    write_figure(path_of_search(PATH, PATH[2]), tmp_path / "path.png")
    assert (tmp_path / "path.png").read_bytes()[:4] == b"\x89PNG"


def words(svg):
    """Matplotlib draws letters as paths, and writes beside them what they say."""
    return set(re.findall("<!-- (.*?) -->", svg))


def test_many_layers_have_colours_of_their_own(tmp_path):
    assert len(set(shades(3))) == 3
    assert len(set(shades(30))) == 30
    steps = [Step(0, None, (16,) * 30, 2.0, 1.0), Step(1, 0, (8,) * 30, 2.1, 2.0)]
    write_figure(path_of_search(steps, steps[1]), tmp_path / "path.svg")
    assert {str(layer) for layer in range(30)} <= words((tmp_path / "path.svg").read_text())


def test_the_axes_are_plain_numbers(tmp_path):
    """KV sizes below, the memory factor that belongs to each above."""
    write_figure(plot.tradeoff(record(2.0, 2.05, 2.4)), tmp_path / "curve.svg")
    found = words((tmp_path / "curve.svg").read_text())
    assert found >= {"a", "b", "standard, whole cache", "text", "memory factor", "32", "16", "8", "2", "4"}
    assert not any("times" in word or "^" in word for word in found)


def test_a_name_is_no_formula(tmp_path):
    curves = record(2.0, 2.05, 2.4)
    curves["curves"][0]["name"] = r"$\half$ of it"
    write_figure(plot.tradeoff(curves), tmp_path / "curve.svg")
    assert r"$\half$ of it" in words((tmp_path / "curve.svg").read_text())


def test_nothing_is_left_of_a_figure_that_fails(tmp_path):
    class Broken(Figure):
        def savefig(self, *args, **kwargs):
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write_figure(Broken(), tmp_path / "a.png")
    with pytest.raises(SelattnError, match="must end with"):
        write_figure(Figure(), tmp_path / "a.txt")
    assert list(tmp_path.iterdir()) == []
