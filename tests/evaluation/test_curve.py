"""The trade-off: points of a path, and the size at equal loss, read off by interpolation."""

import math

import pytest

from selattn.cache import Budgets
from selattn.cli.eval import parse_curve
from selattn.errors import SelattnError
from selattn.evaluation import Team, log_perplexity, make_batches, tradeoff
from selattn.evaluation.text import Text
from selattn.evaluation.tradeoff import AtLoss, Curve, Point, Reached, SearchPath, at_losses, halves, nearest, size_at
from selattn.models.loading import load
from selattn.pruning.folder import SearchSettings, begin
from selattn.pruning.search import Step
from selattn.utils.progress import Progress
from tests.evaluation.folders import model_folder
from tests.pruning.cases import model, rows


def points(**sizes):
    return [(int(k[1:]), loss) for k, loss in sizes.items()]


def test_the_size_at_a_loss():
    curve = points(k4=3.0, k64=2.0, k16=2.2, k32=2.1)
    for loss, size in ((2.2, 16), (2.6, math.sqrt(16 * 4)), (2.05, math.sqrt(64 * 32)), (2.0, 64)):
        found = size_at(curve, loss)
        assert (found.size, found.at_most) == (pytest.approx(size), False)
    assert size_at(curve, 1.9) is None  # not even with everything
    assert size_at(curve, 9.0) == Reached(4, at_most=True)  # also with the smallest
    assert size_at(curve[:1], 3.0) == Reached(4, at_most=True)


def test_rounding_is_no_loss():
    """With everything in its cache the baseline's own model reaches the baseline's loss, but for rounding."""
    assert size_at(points(k64=2.0 + 1e-7, k32=2.5), 2.0) == Reached(64, at_most=False)


def test_what_is_no_number_reaches_no_loss():
    curve = points(k64=2.0, k32=math.nan)
    assert size_at(curve, 2.2) == Reached(64, at_most=False)
    assert size_at(curve, math.nan) is None
    assert size_at(points(k64=math.nan), 2.2) is None


def test_the_usual_sizes():
    assert halves(512) == [512, 256, 128, 64, 32, 16, 8, 4, 2]
    assert halves(23) == [23, 11, 5, 2]


def test_a_loss_that_comes_back_down_does_not_count():
    """From the largest size down, the first time that the loss is too high is the end."""
    assert size_at(points(k64=2.0, k32=2.4, k16=2.1), 2.2).size == pytest.approx(math.sqrt(64 * 32))


def test_points_of_a_path_are_the_nearest_once():
    path = [(8, 8), (8, 6), (6, 6), (6, 4), (4, 4), (4, 2), (2, 2)]
    assert nearest(path, [8, 4, 2, 1]) == [(8, 8), (4, 4), (2, 2)]


def test_measures_every_text():
    net = model()
    texts = {"a": make_batches(rows((24, 9)), 2), "b": make_batches(rows((24, 24), seed=7), 2)}
    for budgets in (None, Budgets((3, 5, 7))):
        found = tradeoff.measure(net, texts, budgets, "tova", Team(), Progress())
        assert found == {name: log_perplexity(net, batches, budgets, "tova") for name, batches in texts.items()}


def test_a_record_tells_where_its_curve_reaches_a_loss():
    """The same as of the points themselves, for each text."""
    texts = {"a": points(k64=2.0, k16=2.2, k4=3.0), "b": points(k64=2.5, k16=2.6, k4=2.7)}
    record = [
        Point(size, 64 / size, (size,), (size,), (size,), {"a": a, "b": b})
        for (size, a), (_, b) in zip(texts["a"], texts["b"], strict=True)
    ]
    size = size_at(texts["a"], 2.4).size
    assert at_losses(record, {"a": 2.4, "b": 2.4}, 64) == {"a": AtLoss(size, 64 / size, False), "b": None}
    assert at_losses(record, {"b": 9.0}, 64) == {"b": AtLoss(4, 16, True)}
    assert at_losses(record, {}, 64) == {}


def test_how_curves_are_written(tmp_path):
    folder = model_folder(tmp_path / "model")
    (tmp_path / "search").mkdir()
    search = SearchSettings(str(folder), "", Text("text.txt"), "", 6, 2, "h2o", 16, 4, None, False)
    begin(tmp_path / "search", search, Step(0, None, (16, 16), 2.0, 1.0))
    name, found = str(folder), load(str(folder))
    assert parse_curve(name) == Curve(name, name, found)
    assert parse_curve(f"mine={name}@sizes:h2o") == Curve("mine", name, found, "h2o", sizes=True)
    assert parse_curve(f"mine={name}@sizes") == Curve("mine", name, found, None, sizes=True)
    assert parse_curve(f"mine={name}@{tmp_path / 'search'}") == Curve(
        "mine", name, found, search=SearchPath(tmp_path / "search", 16, "h2o", ((16, 16),))
    )
    for text, says in (("@sizes:h20", "did you mean 'h2o'"), ("@64", "not the folder of a search")):
        with pytest.raises(SelattnError, match=says):
            parse_curve(f"{folder}{text}")
