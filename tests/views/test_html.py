"""Reports: whole in themselves, whatever a user wrote stays text, and the numbers are those of the records."""

import base64
import html
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from selattn import plot
from selattn.evaluation import Comparison, Tradeoff
from selattn.pruning.run import SearchRecord
from selattn.utils.records import Provenance, as_body
from selattn.utils.tables import Table
from selattn.utils.typed import flat
from selattn.views.explorer import Page
from selattn.views.reports import (
    Explorer,
    Facts,
    Headline,
    Listing,
    Paragraph,
    Picture,
    Report,
    Section,
    against_memory,
    comparison_report,
    search_report,
    tradeoff_report,
    training_report,
)
from tests.views.outline import Outline
from tests.views.traces import random_trace

ROOT = Path(__file__).parents[2]
NASTY = "</script><script>alert(1)</script> \"'& <b> שלום 🙂 /*{style}*/"


def record(name):
    return json.loads((ROOT / name).read_text())


def report(make, kind, found):
    return make(as_body(found, kind), as_body(found, Provenance)).html()


def log():
    trained = [{"step": step, "loss": 5.0 - step / 10, "kept": [0.5, None, 1 / step]} for step in (1, 2, 3)]
    return [*trained, {"step": 3, "evaluation": {"validation": {"loss": 4.5}}}]


def every_block():
    return [
        Paragraph(NASTY, "note"),
        Headline([(NASTY, NASTY)]),
        Table([NASTY, "a"], [[NASTY, NASTY]], NASTY, strong=[0]),
        Facts(NASTY, {NASTY: {"inside": NASTY}, "none": None, "yes": True, "many": [1, 0.5]}),
        Listing(NASTY, NASTY),
        Picture(plot.masking(random_trace()), NASTY, NASTY),
        Explorer(Page((random_trace(tokens=[NASTY] * 12),)), NASTY, "p=3"),
    ]


def test_what_a_user_wrote_stays_text():
    page = Report(NASTY, NASTY, every_block(), [Section(NASTY, every_block())]).html()
    found = Outline(page)
    assert "alert(1)</script>" not in page
    assert html.escape(NASTY, quote=False)[:20] in page
    assert found.tables[0] == [[NASTY, "a"], [NASTY, NASTY]]


def test_it_needs_no_network_and_no_other_file(tmp_path):
    path = Report("t", "l", every_block(), [Section("s", every_block())]).save(tmp_path / "a" / "r.html")
    page = path.read_text()
    assert "default-src 'none'" in page
    assert all(address.startswith(("data:image/", "#")) for address in Outline(page).addresses)
    assert not re.search(r"@import|url\(", page)
    assert [file.name for file in path.parent.iterdir()] == ["r.html"]


def test_a_picture_is_inside_as_strokes_or_as_pixels(monkeypatch):
    small = Picture(plot.masking(random_trace()), "", "").html()
    kind, data = re.search(r"data:image/([\w+]+);base64,([^\"]+)", small).groups()
    assert kind == "svg+xml"
    assert ET.fromstring(base64.b64decode(data)).tag.endswith("svg")
    monkeypatch.setattr("selattn.views.reports.MOST_SVG", 1000)
    large = Picture(plot.masking(random_trace()), "", "").html()
    assert base64.b64decode(re.search(r"image/png;base64,([^\"]+)", large)[1])[:4] == b"\x89PNG"


def test_settings_have_one_name_each():
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == [("a.b", 1), ("a.c", {}), ("d", [2])]


def test_a_training_run():
    found = record("zoo/memory/training_record.json")
    page = training_report(found, log(), "runs/mine").html()
    loss = found["evaluation"]["validation"]["loss"]
    assert Outline(page).tables[0] == [["", "loss, nats per token"], ["validation", f"{loss:.4f}"]]
    assert "What it forgets" in page
    assert html.escape(found["command"], quote=False) in page
    assert found["versions"]["torch"] in page
    task = record("zoo/variable-assignment-standard/training_record.json")
    page = training_report(task, [each for each in log() if "kept" not in each or each.pop("kept")], "x").html()
    accuracy = task["evaluation"]["out_of_distribution"]["accuracy"]
    assert ["out of distribution", f"{task['evaluation']['out_of_distribution']['loss']:.4f}", f"{accuracy:.1%}"] in (
        Outline(page).tables[0]
    )
    assert "What it forgets" not in page


def test_a_search():
    found = record("results/prune/memory-seed0.json")
    page = report(search_report, SearchRecord, found)
    losses, budgets = Outline(page).tables
    assert losses[2][1:] == [f"{found['search_loss']:.4f}", f"{found['report']['pruned']:.4f}"]
    assert [int(row[1]) for row in budgets[1:-1]] == found["budgets"]
    assert f"<b>{found['memory_factor']:.1f}x</b>" in page


def test_models_side_by_side():
    found = record("results/tasks.json")
    tables = Outline(report(comparison_report, Comparison, found)).tables
    first = found["models"][0]["tasks"]["arc_easy"]
    shown = f"{100 * first['acc']:.1f} ± {100 * first['acc_stderr']:.1f}"
    assert tables[0][1][1:3] == [found["models"][0]["model"], shown]
    assert [row[0] for row in tables[1][1:]] == [one["model"] for one in found["models"]]


def test_speed_and_losses():
    text = {"loss": 2.5, "perplexity": 12.2, "rows": 3, "tokens": 1000}
    decoding = {
        "cache_bytes": 1234,
        "full_bytes": 56789,
        "batch": 1,
        "context": 64,
        "tokens_per_second": 10.0,
        "quartiles": [9.0, 11.0],
    }
    kv = {"held": [8, 8], "read": [8, 8], "mean": 8.0, "memory_factor": 8.0}
    whole = {"held": [64, 64], "read": [64, 64], "mean": 64.0, "memory_factor": 1.0}
    about = {"fingerprint": "", "parameters": 9, "context": 64, "kv": kv, "policy": "selective"}
    models = [
        {"model": "a", **about, "kv": whole, "budgets": None, "text": {"book": text}, "decoding": decoding},
        {"model": "b", **about, "budgets": [8, 8], "text": {"book": {**text, "loss": 2.25}}, "decoding": decoding},
    ]
    found = {**record("results/tasks.json"), "models": models}
    page = report(comparison_report, Comparison, found)
    (picture,) = against_memory(as_body(found, Comparison).models)
    drawn = {line.get_label(): line.get_xydata().tolist() for line in picture.figure.axes[0].lines}
    assert drawn == {"a": [[64, 2.5]], "b": [[8, 2.25]]}
    assert page.count("<img ") == 1
    assert against_memory(as_body(found, Comparison).models[:1]) == []  # which says nothing
    losses, memory, speed = Outline(page).tables
    assert losses == [["model", "book"], ["a", "2.5000"], ["b", "2.2500"]]
    assert '<tr class="strong"><th scope="row">b' in page
    assert memory[2] == ["b", "64", "8.0", "8.00x", "8, 8", "selective"]
    assert speed[1] == ["a", "1,234", "56,789", "10.0 (9.0 to 11.0)"]


def test_a_trade_off():
    found = record("results/tradeoff-seed0.json")
    page = report(tradeoff_report, Tradeoff, found)
    tables = Outline(page).tables
    assert len(tables) == len(found["texts"])
    text, curve = next(iter(found["texts"])), found["curves"][1]
    smallest = min(curve["points"], key=lambda point: point["kv_size"])
    assert tables[0][2][2] == f"{smallest['kv_size']:g}: {smallest['loss'][text]:.4f}"
    assert tables[0][2][3].startswith(f"{curve['at_the_baselines_loss'][text]['memory_factor']:.2f}")
