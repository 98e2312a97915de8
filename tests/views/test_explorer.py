"""The explorer's page, without a browser: whole in itself, and safe whatever the text says."""

import html
import json
import re
from urllib.parse import parse_qs

import pytest

import selattn
from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.views import explorer as page_module
from selattn.views.explorer import Page, check_size, explore, grid
from tests.views.traces import random_trace

TASK = "zoo:variable-assignment-selective"
SAMPLE = "Z= 1 X= 2 Z= 3 Y= 4 X= 5 Z= 3"


def test_it_is_public_and_makes_a_page():
    assert selattn.explore is explore
    page = selattn.explore(TASK, SAMPLE, policies=["window"], budgets=[4])
    assert [run["budgets"] for run in page.traces[0].runs] == [[4, 4, 4]]


def test_the_page_needs_no_network_and_no_other_file():
    text = Page((random_trace(),)).html()
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?://", text)
    assert "/*{" not in text


def test_the_page_says_how_large_it_is():
    for trace in (random_trace(), random_trace(size=200, layers=2)):
        page = Page((trace,))
        assert page.parts()[0]["bytes"] == pytest.approx(len(page.html()), rel=0.1)


def test_no_text_ends_an_element():
    tokens = ["</script>", "<!--", "/*{style}*/", "]]>", *(f"{i}" for i in range(8))]
    text = Page((random_trace(tokens=tokens, model="</script><script>alert(1)</script>"),)).html()
    header = re.search(r'<script type="application/json" id="header">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in header
    found = json.loads(header)["subjects"][0]
    assert found["tokens"] == tokens
    assert found["model"] == "</script><script>alert(1)</script>"
    assert "alert(1)</script>" not in text


def test_inner_html_is_never_written():
    for name in page_module.SCRIPTS:
        script = (page_module._HERE / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


def test_a_notebook_gets_a_frame_of_its_own():
    page = Page((random_trace(),))
    found = page._repr_html_()
    assert 'sandbox="allow-scripts"' in found
    inside = re.search(r'srcdoc="(.*?)" sandbox', found, re.DOTALL)[1]
    assert html.unescape(inside) == page.html()


def test_too_much_is_refused(monkeypatch):
    check_size(2048, 28)
    for size in ((2049, 1), (2, 29)):
        with pytest.raises(SelattnError, match="more than a page shows"):
            check_size(*size)
    monkeypatch.setattr(page_module, "MOST_BYTES", 100)
    with pytest.raises(SelattnError, match="show fewer tokens"):
        Page((random_trace(),)).html()
    with pytest.raises(SelattnError, match="not 3"):
        explore([TASK] * 3, SAMPLE)


def test_a_large_page_is_rounded_more_and_says_so(monkeypatch):
    monkeypatch.setattr(page_module, "LARGE", 100)
    page = explore(TASK, SAMPLE, policies=["window"], budgets=[4])
    assert page.traces[0].step == pytest.approx(1 / 8)
    assert page.parts()[0]["subjects"][0]["f"] == [1 / 8] * 3


def test_the_grid():
    assert grid(512) == [2, 4, 8, 16, 32, 64, 128, 256]
    assert grid(513)[-1] == 512
    assert grid(2) == []


def test_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "a" / "page.html"
    assert main(["explore", f"{TASK}@6:h2o", "--policies", "window", "--budgets", "4", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out} (")
    header = json.loads(re.search(r'id="header">(.*?)</script>', out.read_text(), re.DOTALL)[1])
    assert header["subjects"][0]["model"] == TASK
    assert [(run["policy"], run["budgets"]) for run in header["subjects"][0]["runs"]] == [
        ("window", [4, 4, 4]),
        ("h2o", [6, 6, 6]),
    ]
    assert header["view"] == "w=h2o&k=6%2C6%2C6"  # it opens with what was asked for


def test_two_models_open_side_by_side_with_their_budgets(tmp_path):
    out = tmp_path / "page.html"
    assert main(["explore", TASK, f"{TASK}@8,6,4:window+2", "--budgets", "4", "--out", str(out)]) == 0
    header = json.loads(re.search(r'id="header">(.*?)</script>', out.read_text(), re.DOTALL)[1])
    assert parse_qs(header["view"]) == {"w2": ["window+2"], "k2": ["8,6,4"], "m2": ["1"], "two": ["1"]}
    assert Page((), "w=h2o&k=6").parts()[0]["view"] == "w=h2o&k=6"  # also for text that is typed into a served page
