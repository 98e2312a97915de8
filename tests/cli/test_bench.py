"""`selattn bench`: a table with a bar for each backend, a record, and no times for wrong results."""

import json
from unittest import mock

from selattn.cli.main import main
from selattn.evaluation import speed
from selattn.ops import backends, selective_attention

SMALL = ["bench", "--n", "40", "70", "--heads", "2", "--dim", "8", "--repeats", "1"]


def test_every_backend_has_a_row(capsys, tmp_path):
    assert main([*SMALL, "--out", str(tmp_path / "bench.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.count("N = ") == 2
    assert "2 heads of 8, float32" in shown
    there = [name for name, missing in backends().items() if missing is None and name != "sdpa"]
    for name in (speed.RIVAL, *there):
        assert shown.count(name) >= 2
    record = json.loads((tmp_path / "bench.json").read_text())
    assert len(record["rows"]) == 2 * (1 + len(there))
    assert {row["forward_ratio"] for row in record["rows"] if row["backend"] == speed.RIVAL} == {1.0}
    assert all(0 < row["living"] <= 1 for row in record["rows"])


def test_nothing_is_forgotten_where_that_is_asked_for(capsys):
    assert main([*SMALL, "--nothing-forgotten"]) == 0
    assert capsys.readouterr().out.count("100% of the pairs are alive") == 2
    tensors = speed.inputs(30, speed.Shape(heads=2, dim=8), False, 0)
    assert (tensors[0][:, 0] @ tensors[1][:, 0].mT).max() < 0


def test_wrong_results_have_no_times(capsys):
    def wrong(query, key, value, backend, **options):
        return selective_attention(query, key, value, backend=backend, **options) * (2 if backend == "cpu" else 1)

    with mock.patch.object(speed, "selective_attention", wrong):
        assert main(SMALL) == 2
    shown = capsys.readouterr()
    assert "backend 'cpu' is wrong by" in shown.err
    assert "no times are printed for wrong results" in shown.err
    assert "N = 40" not in shown.out
