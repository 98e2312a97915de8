"""Each figure shows the numbers of its record: they are read back from what was drawn."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from selattn import plot
from selattn.errors import SelattnError
from selattn.evaluation.traces import MeanF, pack_rising
from selattn.views.plot.curves import kept_by_layer, losses_of_log
from selattn.views.plot.style import FAINT, GREEN, INK, MARKERS, label, write_figure
from selattn.views.plot.text import DARKEST, balanced, cells, lines
from tests.views.traces import random_trace

ROOT = Path(__file__).parents[2]


def images(figure):
    """The triangles of a figure, without its colour bars."""
    return {axes.get_title(loc="left"): axes.images[0].get_array() for axes in figure.axes if axes.images}


def by_gid(axes, kind):
    found = {}
    for artist in [*axes.patches, *axes.lines]:
        name, _, place = str(artist.get_gid()).rpartition(" ")
        if name == kind:
            found[int(place)] = artist
    return found


def outline(band):
    """The corners of a band, once each and in order."""
    (path,) = band.get_paths()
    return sorted({(round(float(x), 9), round(float(y), 9)) for x, y in path.vertices})


@pytest.mark.parametrize("position", [None, 7])
def test_tokens(position):
    trace = random_trace()
    at = 11 if position is None else position
    figure = plot.tokens(trace, position=position)
    most = max(trace.weights(layer)[at].max() for layer in range(3))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["layer 0", "layer 1", "layer 2"]
    for layer, axes in enumerate(figure.axes):
        lit, struck = by_gid(axes, "attention"), by_gid(axes, "masking")
        assert [text.get_text() for text in axes.texts] == ["<s>", *(f"w{i}" for i in range(1, at + 1))]
        F = trace.F(layer)[at]
        for place in range(at + 1):
            share = lit[place].get_facecolor()[3] / DARKEST * most
            assert share == pytest.approx(trace.weights(layer)[at, place], abs=1e-6)
            assert (place in struck) == (F[place] > 0)
            if place in struck:
                assert struck[place].get_alpha() == pytest.approx(1 - np.exp(-F[place]))


def test_words():
    trace = random_trace(size=40)
    figure = plot.words(trace)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["layer 0", "layer 1", "layer 2"]
    for layer, axes in enumerate(figure.axes):
        left, lit = np.exp(-trace.F(layer)[-1]), by_gid(axes, "left")
        assert sorted(lit) == list(range(40))
        drawn = np.array([lit[place].get_facecolor() for place in range(40)])
        assert drawn[:, 3] / DARKEST == pytest.approx(left, abs=1e-6)
        assert np.allclose(drawn[:, :3], to_rgb(GREEN))
        assert [text.get_text() for text in axes.texts] == ["<s>", *(f"w{i}" for i in range(1, 40))]
        assert [text.get_color() for text in axes.texts] == [INK if share > 0.1 else FAINT for share in left]
        assert {text.get_color() for text in axes.texts} == {INK, FAINT}
        for text, box in zip(axes.texts, (lit[place] for place in range(40)), strict=True):
            assert text.get_position()[0] == box.get_x()
    assert [axes.get_title(loc="left") for axes in plot.words(trace, layers=[1]).axes] == ["layer 1"]


def test_masking():
    trace = random_trace()
    found = images(plot.masking(trace))
    assert list(found) == ["layer 0", "layer 1", "layer 2"]
    for layer, drawn in enumerate(found.values()):
        assert np.array_equal(np.ma.getmaskarray(drawn), np.triu(np.ones((12, 12), bool), 1))
        assert np.array_equal(drawn.filled(0), trace.F(layer))
    assert list(images(plot.masking(trace, layers=[2]))) == ["layer 2"]
    with pytest.raises(SelattnError, match="no layer of this model selects"):
        plot.masking(random_trace(selective=False))
    with pytest.raises(SelattnError, match="no layer 5"):
        plot.masking(trace, layers=[5])


def mean(seed, layers=2, size=6):
    F = np.tril(np.random.default_rng(seed).random((layers, size, size)).cumsum(1))
    return MeanF(f"run {seed}", "text", 5, size, [pack_rising(each, 1 / 64) for each in F])


def test_means():
    one, two = mean(0), mean(1)
    drawn = images(plot.masking_mean(one))
    assert list(drawn) == ["layer 0", "layer 1"]
    assert all(np.array_equal(drawn[f"layer {layer}"].filled(0), one.F(layer)) for layer in range(2))
    both = [axes.images[0].get_array().filled(0) for axes in plot.stability(one, two).axes if axes.images]
    for found, (run, layer) in zip(both, [(run, layer) for run in (one, two) for layer in range(2)], strict=True):
        assert np.array_equal(found, run.F(layer))
    with pytest.raises(SelattnError, match="two runs of one kind"):
        plot.stability(one, mean(1, layers=3))


def test_stability_says_what_is_compared():
    def of(seed, **model):
        data = {"kind": "text", "source": f"somewhere/{seed}/book.txt"}  # where it lies is no matter
        run = {"name": f"run-{seed}", "data": data, "model": {"attention": ["selective"], **model}, "seed": seed}
        return dataclasses.replace(mean(seed), run=run)

    def said(first, second):
        figure = plot.stability(first, second)
        return figure.get_suptitle().split("\n")[1:], [half.get_suptitle() for half in figure.subfigs]

    assert said(of(0), of(1)) == (
        ["two trainings of one recipe"],
        ["run 0: selective, seed 0", "run 1: selective, seed 1"],
    )
    assert said(of(0, memory_epsilon=0.1), of(1)) == (
        ["not two seeds of one recipe: the trainings differ in model.memory_epsilon"],
        ["run 0: selective, memory loss, seed 0", "run 1: selective, seed 1"],
    )
    many = said(of(0, a=1, b=2, c=3, d=4), of(1))[0]
    assert many == ["not two seeds of one recipe: the trainings differ in model.a, model.b and 2 more settings"]
    alike = dataclasses.replace(of(0), model="selective, seed 0")
    assert said(alike, of(1))[1] == ["selective, seed 0", "run 1: selective, seed 1"]
    assert said(of(0), mean(1)) == ([], ["run 0: selective, seed 0", "run 1"])
    assert MeanF.from_json(of(0).to_json()) == of(0)


@pytest.mark.parametrize("run", [0, 1])
def test_kept(run):
    trace = random_trace()
    figure = plot.kept(trace, run=run)
    found, budget = images(figure), trace.runs[run]["budgets"][0]
    assert list(found) == [f"layer {layer}, K = {budget}" for layer in range(3)]
    for layer, drawn in enumerate(found.values()):
        assert np.array_equal(drawn.filled(0) > 0, trace.kept(layer, run))
        assert 0 < (drawn.filled(0) > 0).sum() < 12 * 13 / 2
    factor = 12 / budget
    assert f"{factor:.1f} times less memory" in figure.get_suptitle()
    with pytest.raises(SelattnError, match="0 runs with budgets"):
        plot.kept(random_trace(runs=False))


@pytest.mark.parametrize("layers", [3, 5])
def test_attention(layers):
    """Beside each other where layers are few: a row of panels is a layer then, and else it is of one model."""
    traces = random_trace(model="a", layers=layers), random_trace(seed=1, selective=False, model="b", layers=layers)
    drawn = [axes.images[0].get_array().filled(0) for axes in plot.attention(*traces).axes if axes.images]
    by_model = [(trace, layer) for trace in traces for layer in range(layers)]
    by_layer = [(trace, layer) for layer in range(layers) for trace in traces]
    expected = [trace.weights(layer) for trace, layer in (by_layer if layers == 3 else by_model)]
    assert all(np.array_equal(a, b) for a, b in zip(drawn, expected, strict=True))
    with pytest.raises(SelattnError, match="at least one"):
        plot.attention()


def test_tradeoff():
    """Lines are means over seeds, bands reach from the least to the most, and the baseline is a level."""
    record = json.loads((ROOT / "results" / "tradeoff.json").read_text())
    figure = plot.tradeoff(record)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(record["texts"])
    for axes, text in zip(figure.axes, record["texts"], strict=True):
        drawn = {line.get_label(): line.get_xydata() for line in axes.lines}
        base = record["baseline"]
        assert np.allclose(drawn.pop(f"{base['name']}, whole cache")[:, 1], base["loss"][text])
        assert {name for name in drawn if not name.startswith("_")} == {curve["name"] for curve in record["curves"]}
        expected = []
        for curve in record["curves"]:
            points = sorted(curve["points"], key=lambda point: -point["kv_size"])
            assert np.allclose(drawn[curve["name"]], [(point["kv_size"], point["loss"][text]) for point in points])
            if len(points) > 1:
                expected.append(
                    sorted((point["kv_size"], loss(point["losses"][text])) for point in points for loss in (min, max))
                )
        assert len(expected) > 1
        for band, corners in zip(axes.collections, expected, strict=True):
            assert np.allclose(outline(band), corners)
        (above,) = axes.child_axes
        assert above.xaxis.get_major_formatter()(32, 0) == f"{record['context'] / 32:.3g}"
    with pytest.raises(SelattnError, match="eval --curve"):
        plot.tradeoff({"runs": []})


def test_search():
    record = json.loads((ROOT / "results" / "prune" / "memory-seed0.json").read_text())
    top, bottom = plot.search(record).axes
    factors = [step["factor"] for step in record["path"]]
    path, best, limit = top.lines
    assert np.allclose(path.get_xydata(), [(step["factor"], step["loss"]) for step in record["path"]])
    assert np.allclose(best.get_xydata(), [(record["memory_factor"], record["search_loss"])])
    assert limit.get_ydata()[0] == record["search_limit"]
    assert [line.get_label() for line in bottom.lines[:-1]] == [str(layer) for layer in range(len(record["budgets"]))]
    for layer, line in enumerate(bottom.lines[:-1]):
        assert np.allclose(line.get_xdata(), factors)
        assert line.get_ydata().tolist() == [step["budgets"][layer] for step in record["path"]]
    assert bottom.lines[-1].get_xdata()[0] == record["memory_factor"]


def test_a_training_run():
    log = [
        {"step": 1, "loss": 4.0, "kept": [0.5, None, 0.25]},
        {"step": 2, "evaluation": {"validation": {"loss": 3.5}, "out_of_distribution": {"loss": 3.75}}},
        {"step": 3, "loss": 3.0, "kept": [0.4, None, 0.2]},
    ]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in losses_of_log(log).axes[0].lines}
    assert drawn == {
        "training": [[1, 4.0], [3, 3.0]],
        "validation": [[2, 3.5]],
        "out of distribution": [[2, 3.75]],
    }
    kept = {line.get_label(): line.get_xydata().tolist() for line in kept_by_layer(log).axes[0].lines}
    assert kept == {"0": [[1, 0.5], [3, 0.4]], "2": [[1, 0.25], [3, 0.2]]}
    for draw in (losses_of_log, kept_by_layer):
        with pytest.raises(SelattnError, match="this log"):
            draw([])


def run(kind, loss, seed=0, size=192, heads=3, context=512, parameters=2_000_000):
    model = {"hidden_size": size, "num_hidden_layers": 3, "num_attention_heads": heads, "attention": [kind]}
    return {
        "run": kind,
        "seed": seed,
        "config": {"model": model, "data": {"context": context, "source": "book"}, "schedule": {"steps": 4000}},
        "parameters": parameters,
        "evaluation": {"validation": {"loss": loss}},
        "evaluations": [{"step": step, "validation": {"loss": loss + 1 / step}} for step in (1, 2, 4)],
    }


def test_curves():
    record = {"runs": [run("standard", 3.0), run("standard", 3.2, seed=1), run("selective", 2.0)]}
    axes = plot.curves(record).axes[0]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert list(drawn) == ["standard (2 seeds)", "selective"]
    assert np.allclose(drawn["standard (2 seeds)"], [(1, 4.1), (2, 3.6), (4, 3.35)])
    assert np.allclose(drawn["selective"], [(1, 3.0), (2, 2.5), (4, 2.25)])
    (band,) = axes.collections
    assert np.allclose(outline(band), [(1, 4.0), (1, 4.2), (2, 3.5), (2, 3.7), (4, 3.25), (4, 3.45)])
    with pytest.raises(SelattnError, match="no record has a loss"):
        plot.curves({"runs": []})


def points(axes):
    """What is drawn: (kind of attention, line style, points) of each line, and the ends of the bars."""
    kinds = {line.get_color(): line.get_label() for line in axes.lines if not line.get_label().startswith("_")}
    found, bars = [], []
    for line in axes.lines:
        if line.get_marker() in MARKERS and len(line.get_xdata()):
            drawn = [(float(x), round(float(y), 6)) for x, y in line.get_xydata()]
            found.append((kinds[line.get_color()], line.get_linestyle(), drawn))
    for collection in axes.collections:
        for path in collection.get_paths():
            bars.append([(float(x), round(float(y), 6)) for x, y in path.vertices])
    return found, bars


def test_scaling():
    """Size, context and heads have a panel each; a run stands only where it is alike with a line."""
    runs = [
        *(run(kind, loss, size=size, heads=size // 64, parameters=size * 1000)
          for kind, size, loss in (("standard", 128, 3.0), ("standard", 256, 2.5), ("selective", 128, 2.8))),
        run("standard", 3.4, seed=1, size=128, heads=2, parameters=128_000),
        run("standard", 2.2, size=128, heads=2, context=1024, parameters=128_000),
        run("standard", 2.9, size=128, heads=4, parameters=150_000),
    ]  # fmt: skip
    figure = plot.scaling({"runs": runs})
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "parameters, millions",
        "context size, tokens",
        "attention heads",
    ]
    for axes, title, at, drawn in zip(
        figure.axes,
        ["512 tokens, heads of size 64", "width 128, 3 layers, 2 heads", "width 128, 3 layers, 512 tokens"],
        [0.128, 512, 2],
        [[(0.128, 3.2), (0.256, 2.5)], [(512, 3.2), (1024, 2.2)], [(2, 3.2), (4, 2.9)]],
        strict=True,
    ):
        found, bars = points(axes)
        assert found == [("standard", "-", drawn), ("selective", "None", [(at, 2.8)])]
        assert bars == [[(at, 3.0), (at, 3.4)]]
        assert axes.get_title(loc="left") == title
        assert axes.get_xticks().tolist() == [x for x, _ in drawn]
    assert [text.get_text() for text in figure.legends[0].texts] == ["standard", "selective"]
    with pytest.raises(SelattnError, match="size, context, heads"):
        plot.scaling({"runs": runs}, against=["depth"])
    with pytest.raises(SelattnError, match="no training runs"):
        plot.scaling({})


def test_scaling_draws_what_it_is_given():
    """One kind of axis is one panel; heads of another size are a size all the same; lines of several kinds are told."""
    small, large = (
        run("standard", 3.0 - size / 1000, size=size, heads=size // 32, parameters=size * 1000) for size in (64, 128)
    )
    (axes,) = plot.scaling({"runs": [small, large]}).axes
    assert axes.get_xlabel() == "parameters, millions"
    assert points(axes)[0] == [("standard", "-", [(0.064, 2.936), (0.128, 2.872)])]
    longer = [
        run("standard", 2.0, size=size, heads=size // 32, parameters=size * 1000, context=1024) for size in (64, 128)
    ]
    size, context = plot.scaling({"runs": [small, large, *longer]}).axes
    assert [style for _, style, _ in points(size)[0]] == ["-", "--"]
    words = [text.get_text() for text in size.get_legend().texts]
    assert words == ["512 tokens, heads of size 32", "1,024 tokens, heads of size 32"]
    assert context.get_xlabel() == "context size, tokens"
    trained = [{**each, "config": {**each["config"], "schedule": {"steps": 9}}} for each in longer]
    (axes,) = plot.scaling({"runs": [small, large, *trained]}).axes  # those trained otherwise are on no line with them
    assert [text.get_text() for text in axes.get_legend().texts] == [
        "512 tokens, heads of size 32, 4,000 steps of book",
        "1,024 tokens, heads of size 32, 9 steps of book",
    ]
    (axes,) = plot.scaling({"runs": [small]}).axes
    assert points(axes)[0] == [("standard", "None", [(0.064, 2.936)])]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_every_format_is_written_and_the_same_twice(suffix, tmp_path):
    trace = random_trace(tokens=["<s>", " $x$", "\n", " ", "", "🙂", " שלום", " <b>", "\t", " a", "b", " c"])
    for draw in (plot.tokens, plot.masking):
        written = [write_figure(draw(trace), tmp_path / f"{number}.{suffix}").read_bytes() for number in (0, 1)]
        assert written[0] == written[1]
        assert len(written[0]) > 1000


def test_letters_that_the_font_lacks_are_boxes():
    assert [label(token) for token in (" a", " ", "\n", "🙂", "a b")] == ["a", "␣", "⏎", "□", "a␣b"]
    assert cells("") == 1


def test_lines_break_between_words():
    tokens = [" ab", "cd", " ef", "\n", " gh", " " + "x" * 30]
    assert list(lines(tokens, 8)) == [(0, 0), (0, 2), (0, 5), (0, 7), (1, 0), (2, 0)]
    # <s> is no part of the word behind it.
    assert list(lines(["<s>", "a", "b"], 8)) == [(0, 0), (0, 4), (0, 5)]
    # A blank that is a token of its own stays in its line, and the next word begins the next one.
    assert list(lines([" abcd", " ", "ef", " ", "gh"], 4)) == [(0, 0), (0, 4), (1, 0), (1, 2), (2, 0)]


@given(st.lists(st.sampled_from([" a", "b", " cde", " ", "\n", " fghij"]), min_size=1, max_size=40))
def test_balanced_lines_are_no_more_lines(tokens):
    width = balanced(tokens, 20, 7)
    assert 7 <= width <= 20
    assert max(line for line, _ in lines(tokens, width)) == max(line for line, _ in lines(tokens, 20))


def test_figures_fit_a_page():
    """At most seven inches wide or so, however many layers and tokens there are."""
    for size, layers in ((12, 3), (35, 3), (100, 12), (60, 28)):
        trace = random_trace(size=size, layers=layers)
        for figure in (plot.masking(trace), plot.kept(trace), plot.attention(trace), plot.attention(trace, trace)):
            assert figure.get_size_inches()[0] <= 8.2


def test_no_text_lies_over_another():
    """Blocks of text are laid out by hand: no two tokens of a line meet."""
    trace = random_trace(size=200)
    axes = plot.tokens(trace, layers=[0]).axes[0]
    assert len(by_gid(axes, "attention")) == 200
    boxes = sorted((patch.get_y(), patch.get_x(), patch.get_width()) for patch in by_gid(axes, "attention").values())
    for (y, x, width), (next_y, next_x, _) in itertools.pairwise(boxes):
        assert next_y > y or next_x >= x + width - 0.31
