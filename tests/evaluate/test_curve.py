"""The trade-off: points of a path, and the size at equal loss, read off by interpolation."""

import math

import pytest

from selattn.cache import Budgets
from selattn.errors import SelattnError
from selattn.evaluate import Team, log_perplexity, make_batches
from selattn.evaluate.curve import Curve, Point, measure, nearest, size_at
from selattn.evaluate.kv_size import KVSize
from tests.evaluate.folders import model_folder
from tests.prune.cases import model, rows


def points(**sizes):
    return [Point(KVSize(64, (int(k[1:]),), (int(k[1:]),)), {"text": loss}, None) for k, loss in sizes.items()]


def test_the_size_at_a_loss():
    curve = points(k4=3.0, k64=2.0, k16=2.2, k32=2.1)
    assert size_at(curve, "text", 2.2) == pytest.approx(16)
    assert size_at(curve, "text", 2.6) == pytest.approx(math.sqrt(16 * 4))
    assert size_at(curve, "text", 2.05) == pytest.approx(math.sqrt(64 * 32))
    assert size_at(curve, "text", 1.9) is None  # not even with everything
    assert size_at(curve, "text", 9.0) == 4  # also with the smallest


def test_a_loss_that_comes_back_down_does_not_count():
    """From the largest size down, the first time that the loss is too high is the end."""
    assert size_at(points(k64=2.0, k32=2.4, k16=2.1), "text", 2.2) == pytest.approx(math.sqrt(64 * 32))


def test_points_of_a_path_are_the_nearest_once():
    path = [(8, 8), (8, 6), (6, 6), (6, 4), (4, 4), (4, 2), (2, 2)]
    assert nearest(path, [8, 4, 2, 1]) == [(8, 8), (4, 4), (2, 2)]


def test_measures_every_text_with_every_budget():
    net = model()
    texts = {"a": make_batches(rows((24, 9)), 2), "b": make_batches(rows((24, 24), seed=7), 2)}
    found = measure(net, texts, 24, [None, Budgets((3, 5, 7))], "tova", Team())
    assert [point.size.mean for point in found] == [24, 5]
    for name, batches in texts.items():
        assert found[0].losses[name] == log_perplexity(net, batches)
        assert found[1].losses[name] == log_perplexity(net, batches, Budgets((3, 5, 7)), "tova")


def test_how_curves_are_written(tmp_path):
    folder = model_folder(tmp_path / "model")
    (tmp_path / "search").mkdir()
    assert Curve.parse(f"{folder}") == Curve(f"{folder}", folder)
    assert Curve.parse(f"mine={folder}@sizes:h2o") == Curve("mine", folder, "h2o", sizes=True)
    assert Curve.parse(f"mine={folder}@sizes") == Curve("mine", folder, None, sizes=True)
    assert Curve.parse(f"mine={folder}@{tmp_path / 'search'}") == Curve("mine", folder, search=tmp_path / "search")
    for text, says in (("@sizes:h20", "did you mean 'h2o'"), ("@64", "not the folder of a search")):
        with pytest.raises(SelattnError, match=says):
            Curve.parse(f"{folder}{text}")
