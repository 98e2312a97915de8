"""Figures are written whole, in the format of their name."""

import pytest

from selattn.errors import SelattnError
from selattn.prune import Step
from selattn.report.figure import save_figure
from selattn.report.search_path import draw_path
from selattn.report.tradeoff import draw_tradeoff

PATH = [
    Step(0, None, (16, 16), 2.0, 1.0),
    Step(1, 0, (8, 16), 2.01, 32 / 24),
    Step(2, 1, (8, 8), 2.2, 2.0),
]


def record(*losses):
    points = [{"kv_size": 2.0 ** (5 - i), "loss": {"text": loss}} for i, loss in enumerate(losses)]
    return {
        "texts": {"text": {}},
        "baseline": {"name": "standard", "loss": {"text": 2.1}},
        "curves": [{"name": "a", "points": points}, {"name": "b", "points": points[:1]}],
    }


def test_the_path_of_a_search(tmp_path):
    draw_path(tmp_path / "a" / "path.svg", PATH, PATH[1], 2.1, "title")
    text = (tmp_path / "a" / "path.svg").read_text()
    assert text.startswith("<?xml")
    draw_path(tmp_path / "path.png", PATH, PATH[2])
    assert (tmp_path / "path.png").read_bytes()[:4] == b"\x89PNG"


def test_the_trade_off(tmp_path):
    draw_tradeoff(tmp_path / "curve.png", record(2.0, 2.05, 2.4))
    one = (tmp_path / "curve.png").read_bytes()
    draw_tradeoff(tmp_path / "curve.png", record(2.0, 2.05, 2.9))
    assert (tmp_path / "curve.png").read_bytes() != one
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


def test_nothing_is_left_of_a_figure_that_fails(tmp_path):
    def draw(figure):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        save_figure(tmp_path / "a.png", draw)
    with pytest.raises(SelattnError, match="must end with"):
        save_figure(tmp_path / "a.txt", draw)
    assert list(tmp_path.iterdir()) == []
