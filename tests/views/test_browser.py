"""The explorer and reports in a real browser: what they show is what Python has, and what a text says stays text."""

import dataclasses
import itertools
import time

import numpy as np
import pytest
import torch

from benchmarks import explorer as benchmark
from selattn.cache import Budgets, make_policy
from selattn.evaluation import Comparison, Tradeoff
from selattn.evaluation.traces import given_text, leaving, unpack_steps
from selattn.models.loading import load
from selattn.pruning.run import SearchRecord
from selattn.utils.records import Provenance, as_body
from selattn.views.explorer import Page, explore
from selattn.views.reports import Explorer, Report, comparison_report, search_report, tradeoff_report
from tests.views.browser import Tab, browser
from tests.views.test_html import record
from tests.views.traces import random_trace

NASTY = [
    "<s>",
    " <script>",
    "alert(1)",
    "</script>",
    ' "quoted',
    "'",
    " שלום",
    " مرحبا",
    " 🙂",
    "",
    "\n",
    " <img src=x onerror=alert(1)>",
]


@pytest.fixture(scope="module")
def opened():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A page of a real model: two policies, three budgets, and budgets that differ between layers."""
    page = explore(
        "zoo:variable-assignment-selective",
        given_text("sample", load("zoo:variable-assignment-selective")),
        policies=["selective", "h2o", "window+4"],
        budgets=[4, 8, 16],
        also=[("selective", [6, 12, 3])],
    )
    return page, page.save(tmp_path_factory.mktemp("zoo") / "page.html").as_uri()


@pytest.fixture
def tab(opened, request):
    tabs = []

    def open_tab(address, **how):
        tabs.append(Tab(opened, address, **how))
        return tabs[-1]

    yield open_tab
    for each in tabs:
        assert each.said == []  # nobody complains
        each.close()


def written(page, tmp_path):
    return page.save(tmp_path / "page.html").as_uri()


def test_F_S_and_attention_are_pythons(zoo, tab):
    page, address = zoo
    (trace,) = page.traces
    shown = tab(address)
    rows, columns = np.tril_indices(trace.size)
    for layer in range(trace.layers):
        found = shown.ask(
            f"""() => explorer.subjects[0].layer({layer}).then((x) =>
                [Array.from(x.levels, (level) => level * x.step), Array.from(x.weights)])"""
        )
        assert np.array_equal(np.float32(found[0]), trace.F(layer)[rows, columns])
        assert np.allclose(np.array(found[1]) / 255, trace.weights(layer)[rows, columns], atol=1e-6)
        S = trace.S(layer)
        for j in (1, 5, trace.size - 2):
            listed = shown.ask(
                f"""() => explorer.subjects[0].layer({layer}).then((x) =>
                    maskers(x.levels, x.step, explorer.subjects[0].size, true, {j}))"""
            )
            much = np.zeros(trace.size)
            much[[each["by"] for each in listed]] = [each["much"] for each in listed]
            assert np.allclose(much, S[:, j], atol=1e-4)
            assert [each["much"] for each in listed] == sorted((each["much"] for each in listed), reverse=True)


def test_survivors_are_those_of_the_cache_at_every_budget_of_the_grid(zoo, tab):
    page, address = zoo
    (trace,) = page.traces
    shown, model, ids = tab(address), load(trace.model).model, torch.tensor([trace.ids[:31]])
    for number, run in enumerate(trace.runs):
        cache = model.new_cache(Budgets(tuple(run["budgets"])), make_policy(run["policy"]))
        with torch.inference_mode():
            model(ids, past_key_values=cache, use_cache=True)
        budgets = ",".join(map(str, run["budgets"]))
        policy = run["policy"].replace("+", "%2B")
        for layer in range(trace.layers):
            shown.view(f"#w={policy}&k={budgets}&l={layer}&p=30")
            gone = shown.ask(
                "() => [...document.querySelectorAll('.tokens .gone')].map((x) => Number(x.dataset.token))"
            )
            expected = np.flatnonzero(trace.evicted_at(number)[layer] <= 30)
            assert gone == expected[expected <= 30].tolist()
            held = set(cache.layers[layer].position.flatten().tolist()) - {-1}
            assert set(range(31)) - set(gone) == held
            assert shown.ask("() => document.querySelector('.badge').textContent") == "exact"


def test_other_budgets_are_replayed_and_say_so(zoo, tab):
    page, address = zoo
    (trace,) = page.traces
    shown = tab(f"{address}#w=selective&k=14,14,14&l=0&p=34")
    badge, why = said(shown)
    assert badge == "approximate"
    assert why.startswith("Approximate: replayed from F of the whole cache, rounded to steps of 1/32.")
    assert why.endswith("but for the rounding, F would be the same.")
    # The first layer depends on no other: there a replay is what the model does.
    at = shown.ask("() => Array.from(explorer.panes[0].drawn.gone.at)")
    done = leaving(load(trace.model).model, torch.tensor([trace.ids]), "selective", 14)
    assert at == unpack_steps(done["evicted_at"], trace.layers, trace.size)[0].tolist()
    shown.page.select_option(".controls label:has-text('layer') select >> nth=0", "1")
    assert "(approximate)" in shown.ask(
        "() => (explorer.choose(3), explorer.ready.then(() => document.body.innerText))"
    )
    assert said(shown)[1].endswith("evictions in the layers before this one would change F.")


def said(shown):
    """The badge, and why it is that: as its title and as a note beside the text."""
    shown.ready()
    badge, title, note = shown.ask(
        """() => [...[(x) => x.textContent, (x) => x.title].map((f) => f(document.querySelector('.badge'))),
                 document.querySelector('aside .from').textContent]"""
    )
    assert title == note
    assert title.lower().startswith(f"{badge}:")
    return badge, title


@pytest.mark.parametrize(
    ("view", "badge", "why"),
    [
        ("w=selective&k=8&l=1", "exact", "from a forward of the model with these budgets."),
        ("w=selective&k=6,12,3&l=2", "exact", "from a forward of the model with these budgets."),
        ("w=selective&k=8,8,16&l=1", "exact", "with these budgets up to this layer"),
        ("w=selective&k=8,8,16&l=2", "approximate", "replayed from F"),
        ("w=h2o&k=8,8,16&l=1", "exact", "with these budgets up to this layer"),
        ("w=h2o&k=8,8,16&l=2", "approximate", "from a forward with this K in this layer"),
        ("w=h2o&k=8,99,16&l=1", "exact", "room for every token"),
        ("w=window%2B4&k=14,6,14&l=1", "exact", "positions alone"),
    ],
)
def test_what_is_exact_says_why(zoo, tab, view, badge, why):
    """And what is called exact is what the model does with these budgets."""
    page, address = zoo
    (trace,) = page.traces
    shown = tab(f"{address}#{view}&p=34")
    found = said(shown)
    assert (found[0], why in found[1]) == (badge, True)
    state, at = shown.ask("() => ((pane) => [pane.state, Array.from(pane.drawn.gone.at)])(explorer.panes[0])")
    done = leaving(load(trace.model).model, torch.tensor([trace.ids]), state["policy"], state["budgets"])
    real = unpack_steps(done["evicted_at"], trace.layers, trace.size)[state["layer"]].tolist()
    assert badge == "approximate" or at == real


def test_layers_that_do_not_select_are_replayed_too(tab, tmp_path):
    """There F is 0 everywhere, so that the oldest leaves, but for the first token."""
    shown = tab(written(Page((random_trace(selective=False),)), tmp_path) + "#w=selective&k=4")
    assert shown.ask("() => document.querySelector('.badge').textContent") == "exact"
    shown.press("]")
    budgets, at = shown.ask(
        "() => explorer.ready.then(() => ((p) => [p.state.budgets, Array.from(p.drawn.gone.at)])(explorer.panes[0]))"
    )
    k = budgets[0]
    assert k > 4
    assert at == [12, *(min(j + k - 1, 12) for j in range(1, 12))]
    assert said(shown) == (
        "exact",
        "Exact: this layer does not select, so F is 0, and the oldest token but the first is evicted.",
    )


def test_windows_need_no_model(zoo, tab):
    page, address = zoo
    (trace,) = page.traces
    shown = tab(address)
    for number, run in enumerate(trace.runs):
        if run["policy"] == "window+4":
            k = run["budgets"][0]
            found = shown.ask(f"() => Array.from(replay({trace.size}, {k}, windowRank('window+4', {k})))")
            assert found == trace.evicted_at(number)[0].tolist()


def test_what_is_drawn_is_what_is_meant(zoo, tab):
    page, address = zoo
    (trace,) = page.traces
    shown = tab(f"{address}#l=1&p=20")
    drawn = shown.ask(
        """() => [...document.querySelectorAll('.tokens span')].map((x) =>
            [x.textContent, getComputedStyle(x).textDecorationColor, getComputedStyle(x).backgroundColor,
             x.className])"""
    )
    F, weights = trace.F(1)[20], trace.weights(1)[20]
    for place, (text, strike, behind, classes) in enumerate(drawn):
        assert text == trace.tokens[place].removeprefix(" ")  # the blank in front is neither struck nor lit
        assert ("later" in classes) == (place > 20)
        assert ("looks" in classes) == (place == 20)
        assert alpha(strike) == pytest.approx(0 if place > 20 else 1 - np.exp(-F[place]), abs=0.011)
        assert alpha(behind) == pytest.approx(0 if place > 20 else 0.7 * weights[place] / weights.max(), abs=0.011)


def alpha(colour):
    parts = colour[colour.index("(") + 1 : -1].split(",")
    return float(parts[3]) if len(parts) == 4 else 1.0


def test_a_click_tells_who_masked_it_and_when_it_left(zoo, tab):
    page, address = zoo
    (trace,) = page.traces
    shown = tab(f"{address}#l=1&p=30&w=selective&k=8")
    shown.page.click(".tokens span[data-token='5']")
    said = shown.ask("() => document.querySelector('aside').innerText")
    best = int(trace.S(1)[:, 5].argmax())
    assert "token 5" in said
    left = trace.evicted_at(1)[1][5]
    assert f"Evicted from this layer at step {left}" in said
    rows = "() => [...document.querySelectorAll('aside tr[data-layer]')].map((x) => x.lastChild.textContent)"
    expected = [at if at < trace.size else "never" for at in trace.evicted_at(1)[:, 5].tolist()]
    assert shown.ask(rows) == [str(at) for at in expected]
    first = shown.ask(
        "() => [...document.querySelectorAll('aside tr[data-token]')].map((x) => Number(x.dataset.token))[0]"
    )
    assert first == best
    assert "t=5" in shown.ask("() => location.hash")


def test_the_keyboard(zoo, tab):
    _, address = zoo
    shown = tab(f"{address}#l=0&p=10&w=selective&k=8")
    state = """() => [explorer.position, explorer.panes[0].state.layer, explorer.panes[0].state.budgets[0],
        explorer.chosen, explorer.panes.length]"""
    shown.press("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown")
    assert shown.ask(state) == [11, 1, 8, None, 1]
    shown.press("]", "]", "[", "s", "Shift+ArrowLeft", "c")
    after = shown.ask(state)
    assert after[0] == 11
    assert after[2] > 8
    assert after[3:] == [10, 2]
    shown.press("Escape", "Home", "c", "?")
    assert shown.ask(state)[0] == 0
    assert shown.ask(state)[3:] == [None, 1]
    assert shown.page.is_visible("#keys")
    shown.press("d")
    assert shown.ask("() => document.documentElement.dataset.theme") == "dark"
    shown.press("End", "Space")
    shown.page.wait_for_function("() => explorer.position > 1 && explorer.position < 34", timeout=20_000)
    shown.press("Space")
    assert shown.ask("() => explorer.timer") is None


def test_a_link_brings_back_the_same_view(zoo, tab):
    _, address = zoo
    shown = tab(f"{address}#l=2&p=17&w=selective&k=6,12,3&t=4&two=1&l2=1&w2=h2o&k2=8")
    link = shown.ask("() => location.hash")
    look = "() => explorer.panes.map((pane) => [pane.tokens.innerHTML, pane.side.innerText])"
    again = tab(address + link)
    assert again.ask("() => location.hash") == link
    assert again.ask(look) == shown.ask(look)
    assert again.ask("() => explorer.panes[0].state.budgets") == [6, 12, 3]
    again.page.evaluate("() => { location.hash = '#p=3&l=1' }")
    again.page.wait_for_function("() => explorer.position === 3")
    assert again.ask("() => explorer.panes.length") == 1


def test_a_page_opens_with_the_view_it_was_made_for(zoo, tab, tmp_path):
    page, _ = zoo
    shown = tab(dataclasses.replace(page, view="w=selective&k=6%2C12%2C3").save(tmp_path / "page.html").as_uri())
    assert shown.ask("() => [explorer.panes[0].state.policy, explorer.panes[0].state.budgets]") == [
        "selective",
        [6, 12, 3],
    ]


@pytest.mark.parametrize(
    "link", ["#p=99999&l=77&w=no&k=x,y&t=-1&m=9&two=7", "#p=abc&k=,,,&w=%00", "#%ff&&&=", "#w=selective&k=1"]
)
def test_links_that_make_no_sense_are_made_to(zoo, tab, link):
    _, address = zoo
    shown = tab(address + link)
    position, layer = shown.ask("() => [explorer.position, explorer.panes[0].state.layer]")
    assert 0 <= position <= 34
    assert 0 <= layer <= 2


def test_a_text_stays_text(tab, tmp_path):
    page = Page((random_trace(tokens=NASTY, model="<img src=x onerror=alert(2)>"),))
    shown = tab(written(page, tmp_path) + "#t=1&w=selective&k=4")
    signs = {"": "·", "\n": "⏎\n"}
    expected = [signs.get(token, token) for token in NASTY]
    assert shown.ask("() => document.querySelector('.tokens').textContent") == "".join(expected)
    assert shown.ask("() => [...document.querySelectorAll('.tokens span')].map((x) => x.textContent)") == [
        token.removeprefix(" ") for token in expected
    ]
    for place in range(len(NASTY)):
        shown.page.evaluate(f"() => explorer.select({place})")
        shown.ready()
    assert shown.ask("() => document.querySelectorAll('img').length") == 0
    assert "<img src=x onerror=alert(2)>" in shown.ask("() => document.getElementById('about').textContent")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("two", ["", "&two=1"])
def test_nothing_overflows_a_phone(tab, tmp_path, theme, two):
    tokens = ["<s>", " " + "verylongword" * 12, *(f" w{i}" for i in range(58))]
    page = Page((random_trace(size=60, layers=12, tokens=tokens, model="a/very/long/path/" * 6),))
    shown = tab(written(page, tmp_path) + f"#p=50&t=1&w=selective&k=4{two}", width=390, height=844, color_scheme=theme)
    shown.press("?")
    assert shown.ask("() => document.documentElement.scrollWidth") <= 390
    wide = shown.ask(
        """() => [...document.querySelectorAll('body *')].filter((x) => {
            const box = x.getBoundingClientRect();
            return box.width > 0 && (box.right > 391 || box.left < -1);
        }).map((x) => x.tagName + '.' + x.className)"""
    )
    assert wide == []


def test_two_models_are_compared(tab, tmp_path):
    page = Page((random_trace(model="one"), random_trace(seed=1, selective=False, model="two", size=10)))
    shown = tab(written(page, tmp_path))
    shown.page.click("#compare")
    assert shown.ask("() => explorer.panes.map((pane) => pane.subject.model)") == ["one", "two"]
    shown.press("End")
    assert shown.ask("() => explorer.panes.map((pane) => pane.drawn.at)") == [11, 9]


def test_a_page_of_512_tokens_and_12_layers_loads_in_time(tab, tmp_path):
    page = Page((random_trace(size=512, layers=12),))
    began = time.perf_counter()
    shown = tab(written(page, tmp_path))
    assert time.perf_counter() - began < 30  # of a busy machine; a quiet one takes a fraction of a second
    assert shown.ask("() => explorer.opened") < 2


def test_a_frame_of_a_notebook_shows_it(opened, tmp_path):
    (tmp_path / "notebook.html").write_text(Page((random_trace(),))._repr_html_(), "utf-8")
    context = opened.new_context()
    notebook = context.new_page()
    said = []
    notebook.on("pageerror", lambda error: said.append(str(error)))
    notebook.goto((tmp_path / "notebook.html").as_uri())
    frame = notebook.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(state="attached", timeout=30_000)
    frame.locator(".tokens span").nth(3).click()
    frame.locator("aside tr[data-layer]").first.wait_for()
    assert said == []
    context.close()


def test_new_text_is_typed_where_it_is_served(tab):
    import threading

    from selattn.views.explorer.server import Server

    errors = []

    def read(text):
        if text == "fails":
            raise RuntimeError("no")
        return Page((random_trace(tokens=["<s>", *(f" {word}" for word in text.split())], size=len(text.split()) + 1),))

    with Server(Page((random_trace(),)), read, report=errors.append) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = tab(server.url)
        shown.page.fill("#words", "fails")
        shown.page.click("#typed button")
        shown.page.wait_for_function(
            "() => document.getElementById('answer').textContent.includes('failed on this text')"
        )
        assert len(errors) == 1
        assert ["500" in said for said in shown.said] == [True]  # of which the browser tells, too
        shown.said.clear()
        shown.page.fill("#words", "three <b>new</b> words")
        shown.page.click("#typed button")
        shown.page.wait_for_function("() => explorer.subjects[0].size === 4")
        assert shown.ask("() => document.querySelector('.tokens').textContent") == "<s> three <b>new</b> words"
        server.shutdown()


def reports():
    """A page of every kind, from records that are here; one has an explorer inside."""
    made = as_body(record("results/tasks.json"), Provenance)
    return {
        "prune": search_report(as_body(record("results/prune/memory-seed0.json"), SearchRecord), made),
        "eval": comparison_report(as_body(record("results/tasks.json"), Comparison), made),
        "curve": tradeoff_report(as_body(record("results/tradeoff-seed0.json"), Tradeoff), made),
        "inside": Report("a", "b", [Explorer(Page((random_trace(),)), "c", "l=1&p=5")], []),
    }


@pytest.mark.parametrize("width", [390, 1000])
def test_reports_fit_and_nothing_complains(opened, tmp_path, width):
    for theme, (name, report) in itertools.product(("light", "dark"), reports().items()):
        context = opened.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
        shown, said = context.new_page(), []
        shown.on("console", lambda message, said=said: said.append(message.text))
        shown.on("pageerror", lambda error, said=said: said.append(str(error)))
        shown.goto(report.save(tmp_path / f"{name}.html").as_uri())
        if name == "inside":
            frame = shown.frame_locator("iframe")
            frame.locator("html[data-ready]").wait_for(state="attached", timeout=30_000)
            assert frame.locator(".tokens .looks").get_attribute("data-token") == "5"
        else:
            assert shown.locator("table").count() > 0
            assert shown.evaluate("() => [...document.images].every((image) => image.naturalWidth > 100)")
        assert shown.evaluate("() => document.documentElement.scrollWidth") <= width
        assert said == []
        context.close()


def test_the_benchmarks_page_has_what_a_page_has(opened, tmp_path):
    """Policies, a grid of budgets, and layers of which none is a copy of another."""
    page = benchmark.page_of(16, 4)
    (trace,) = page.traces
    assert [(run["policy"], run["budgets"]) for run in trace.runs] == [
        (policy, [k] * 4) for policy in ("selective", "h2o", "window+4") for k in (2, 4, 8)
    ]
    assert len({layer["f"]["data"] for layer in trace.packed}) == 4
    for number, run in enumerate(trace.runs):
        for layer in range(4):
            held = trace.kept(layer, number).sum(1)
            assert (held >= np.minimum(np.arange(1, 17), run["budgets"][0])).all()
            assert (trace.evicted_at(number) < 16).any()
    row = benchmark.measure(opened, page, tmp_path)
    assert (row["tokens"], row["layers"], row["runs"]) == (16, 4, 9)
    assert min(seconds for name, seconds in row.items() if name.endswith("seconds")) > 0
