"""The pictures of the documents are those that `python -m tools.pictures` makes, and they are small."""

import re
from pathlib import Path

import numpy as np
import pytest

from selattn import plot
from selattn.evaluation.traces import MeanF, Trace
from tools.pictures import IMAGES, LARGEST, REPRODUCED, SECOND, VIEWS, plots

ROOT = Path(__file__).parents[2]
NAMES = [*plots(), *REPRODUCED, *VIEWS]


def test_every_figure_has_a_picture():
    assert set(plot.FIGURES) == set(plots())
    assert all(command.split()[0] == name for name, command in plots().items())


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_there_and_small(name):
    content = (ROOT / IMAGES / f"{name}.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) <= LARGEST


def test_the_page_shows_them_all_and_nothing_else_lies_there():
    shown = re.findall(r"!\[[^\]]+\]\(images/([^)]+)\)", (ROOT / "docs" / "pictures.md").read_text())
    assert sorted(shown) == sorted(f"{name}.png" for name in NAMES)
    assert sorted(path.name for path in (ROOT / IMAGES).glob("*.*")) == sorted(shown)
    assert "docs/images/tokens.png" in (ROOT / "README.md").read_text()[:1500]


def test_the_records_draw_their_pictures_again():
    folder = ROOT / IMAGES / "records"
    assignment, words = Trace.load(folder / "assignment.json"), Trace.load(folder / "words.json")
    for figure, shown, layers in (
        (plot.tokens(assignment, position=33), 34, assignment.layers),
        (plot.words(words), words.size, words.layers),
    ):
        assert [len(axes.texts) for axes in figure.axes] == [shown] * layers
    mean = MeanF.load(folder / "mean.json")
    drawn = [axes.images[0].get_array().filled(0) for axes in plot.masking_mean(mean).axes if axes.images]
    assert len(drawn) == mean.layers
    assert all(np.array_equal(found, mean.F(layer)) for layer, found in enumerate(drawn))
    title = plot.stability(mean, MeanF.load(ROOT / SECOND)).get_suptitle()
    assert title.endswith("two trainings of one recipe")
