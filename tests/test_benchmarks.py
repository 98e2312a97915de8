"""The benchmarks run, at sizes that say nothing, and write the records that documents read."""

import json
import os
import subprocess
import sys

import pytest
import torch

from selattn.data import Reading
from selattn.evaluation import log_perplexity, make_batches
from selattn.evaluation.text import Text
from selattn.models.loading import load
from selattn.utils import records
from tests import forked
from tests.conversion.tiny import llama_folder
from tests.evaluation.folders import model_folder, pieces, text_file
from tests.models.stock.llama2c import write_checkpoint, write_tokenizer
from tools.tables import ROOT, decoding


def run(name, folder, *options, **more):
    """The record of a benchmark; more: of its environment. Those of Triton, which reads that early, begin anew."""
    record = folder / "record.json"
    words = [ROOT / "benchmarks" / name, *options, "--out", record]
    if not name.startswith("gpu"):
        done = forked.run(words, folder, **more)
        assert done.returncodes == [0], done.stderr
        return records.read_record(record)
    anew = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, env={**os.environ, **more}
    )
    assert anew.returncode == 0, anew.stderr
    return records.read_record(record)


@pytest.fixture(scope="module")
def decode(tmp_path_factory):
    options = "--d 1 --batch 1 3 --context 20 40 --prefill 40 --repeats 3 --tokens 1 --no-compile"
    return run("decode.py", tmp_path_factory.mktemp("decode"), *options.split())


def test_decoding_is_compared_with_the_best_rival_round_by_round(decode):
    assert [(row["batch"], row["context"]) for row in decode["rows"]] == [(1, 20), (3, 20), (1, 40), (3, 40)]
    for row in decode["rows"]:
        rounds = row["seconds"]
        assert set(rounds) == {"DynamicCache", "StaticCache", "16x budgets", "no budgets", "K = 2"}
        middle = {name: sorted(times)[1] for name, times in rounds.items()}
        assert row["best"] == min(("DynamicCache", "StaticCache"), key=middle.__getitem__)
        ratios = sorted(a / b for a, b in zip(rounds[row["best"]], rounds["16x budgets"], strict=True))
        found = row["times_faster_than"][row["best"]]["16x budgets"]
        assert [found["low"], found["median"], found["high"]] == ratios
        limit = sorted(a / b for a, b in zip(rounds["K = 2"], rounds["16x budgets"], strict=True))
        assert row["of_the_limit"]["16x budgets"]["median"] == limit[1]
        assert row["tokens_per_second"]["StaticCache"]["median"] == pytest.approx(row["batch"] / middle["StaticCache"])
    (row,) = decode["prefill"]
    assert (row["context"], row["attention"]) == (40, "sdpa")
    assert row["time"]["low"] <= row["time"]["median"] <= row["time"]["high"]


def test_standard_attention_is_compared_in_both_dtypes(tmp_path):
    options = "--n 8 20 --heads 2 --repeats 1"
    found = run("standard_attention.py", tmp_path, *options.split())
    rows = {(row["dtype"], row["n"], row["threads"]): row for row in found["rows"]}
    assert set(rows) == {(dtype, n, t) for dtype in ("float32", "bfloat16") for n in (8, 20) for t in (1, 2)}
    for row in rows.values():
        for what in ("forward", "both"):
            assert row[f"{what}_ratio"] == pytest.approx(row[what]["cpu"] / row[what]["flash"])


def test_the_table_of_decoding_is_made_of_the_record(decode, tmp_path):
    (tmp_path / "decode.json").write_text(json.dumps(decode))
    assert "\n| 3 | 40 | " in decoding(tmp_path)


@pytest.mark.slow
def test_decoding_of_a_stock_llama_made_selective(tmp_path):
    options = "--stock --d 1 --batch 2 --context 160 --prefill 64 --repeats 2 --tokens 1 --no-compile"
    found = run("decode.py", tmp_path, *options.split())
    assert found["ours"] == "SelectiveLlamaForCausalLM"
    assert set(found["rows"][0]["of_the_limit"]) == {"16x budgets", "no budgets"}
    assert {"h2o, K = 128", "tova, K = 128", "window+4, K = 128"} <= set(found["rows"][0]["seconds"])
    assert len(set(found["shape"]["parameters"].values())) == 1  # the same model on both sides


@pytest.mark.slow
def test_policies_of_a_stock_model_with_passkeys(tmp_path):
    write_checkpoint(tmp_path / "model.bin", write_tokenizer(tmp_path / "tok.bin"))
    (tmp_path / "text.txt").write_text("the cat at the tea " * 40)
    options = "--rows 2 --context 24 --items 2 --passkey-tokens 200 --passkey-factors 1 8"
    found = run("stock_policies.py", tmp_path, tmp_path, tmp_path / "text.txt", *options.split())
    assert [(row["policy"], row["factor"]) for row in found["rows"]] == [
        (None, 1),
        *((policy, factor) for factor in (2, 4, 8) for policy in ("h2o", "tova", "window+4")),
    ]
    assert ["passkeys" in row for row in found["rows"]] == [row["factor"] in (1, 8) for row in found["rows"]]
    assert len({row["loss"] for row in found["rows"]}) > 4
    assert not list(tmp_path.glob("*.parts.jsonl"))


def test_a_memory_factor_is_where_a_curve_crosses_a_loss(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from conversion import crossing, spread

    curve = {1.0: 2.0, 2.0: 2.1, 8.0: 2.3}
    assert crossing(curve, 1.9) is None
    assert crossing(curve, 2.0) == 1.0
    assert crossing(curve, 2.05) == pytest.approx(2**0.5)
    assert crossing(curve, 2.2) == pytest.approx(4.0)
    assert crossing(curve, 2.5) == 8.0
    assert crossing({1.0: 2.0, 2.0: 1.9, 4.0: 2.1, 8.0: 1.8}, 2.0) == pytest.approx(2 * 2**0.5)  # not beyond a hill
    assert spread([1.0, 2.0, 6.0]) == {"mean": 3.0, "min": 1.0, "max": 6.0}
    assert spread([1.0, None]) == {"mean": None, "min": None, "max": 1.0}  # one that never gets there has no factor


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder with a stock Llama of one layer, which is quickly searched, and a text."""
    folder = tmp_path_factory.mktemp("pretrained")
    llama_folder(folder / "llama", num_hidden_layers=1)
    text_file(folder / "text.txt", documents=300, words=60)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_recipes_of_a_conversion(pretrained, tmp_path):
    """Each on other documents than it was trained on; run again, nothing is trained twice."""
    again = (pretrained / "text.txt").read_text().split("\n\n")[5]
    text = tmp_path / "text.txt"
    text.write_text((pretrained / "text.txt").read_text() + f"\n{again}\n\nthe café and the cat\n")
    options = "--separator blank --context 64 --steps 2 --seeds 0 --runs runs --recipes recipe"
    words, more = [pretrained / "llama", text, *options.split()], {"SELATTN_CACHE": str(tmp_path / "cache")}
    found = run("conversion.py", tmp_path, *words, "control", **more)
    documents = found["documents"]
    assert (documents["documents"], documents["duplicates"], documents["left out"]) == (302, 1, 1)
    parts = {"train": "text/train", "choice": "text/validation", "search": "search", "report": "report"}
    texts = {part: (tmp_path / "runs" / f"{name}.jsonl").read_text().splitlines() for part, name in parts.items()}
    assert {part: len(lines) for part, lines in texts.items()} == {part: documents[part] for part in parts}
    assert len({line for lines in texts.values() for line in lines}) == 300
    original = load(pretrained / "llama")
    rows = Text(str(tmp_path / "runs" / "report.jsonl"), reading=Reading(validation=1.0)).rows(original.tokenizer, 64)
    loss = log_perplexity(original.model, make_batches(rows.take(128), 32))
    assert found["original"]["unpruned"]["report"] == pytest.approx(loss, rel=1e-6)
    policies = {"recipe": ["selective", "selective-per-head"], "control": ["h2o", "tova", "window+4"]}
    assert found["missing"] == []
    for each in found["runs"]:
        assert [curve["policy"] for curve in each["uniform"]] == policies[each["recipe"]]
        told = found["summary"][each["recipe"]]
        for curve, layered in zip(each["uniform"], each["by layer"], strict=True):
            assert told[curve["policy"]]["losses"]["8"]["mean"] == curve["losses"]["8"]
            wide = layered["8 times"]
            assert wide["factor"] == pytest.approx(64 / sum(wide["budgets"]))
            assert wide["factor"] >= 8
            assert wide["above the original"] == pytest.approx(wide["report"] - loss)
    assert not list(tmp_path.glob("*.parts.jsonl"))
    trained = (tmp_path / "runs" / "recipe-0" / "model" / "model.safetensors").stat().st_mtime_ns
    again = run("conversion.py", tmp_path, *words, **more)
    assert again["runs"] == found["runs"][:1]
    assert (tmp_path / "runs" / "recipe-0" / "model" / "model.safetensors").stat().st_mtime_ns == trained


@pytest.mark.slow
def test_a_pretrained_model_is_converted_and_asked(pretrained, tmp_path):
    options = "--context 32 --steps 1 3 --rows 2 --items 1 --passkey-tokens 150 --runs runs"
    files = [pretrained / "llama", pretrained / "text.txt", pretrained / "text.txt"]
    found = run("convert_pretrained.py", tmp_path, *files, *options.split(), SELATTN_CACHE=str(tmp_path / "cache"))
    lines, steps = found["lines"], [1, 3]
    originals = [f"original, {policy}" for policy in ("h2o", "tova", "window+4")]
    assert list(lines) == [*originals, *(f"converted, {n} steps" for n in steps)]
    assert len({line["losses"]["1"] for name, line in lines.items() if name.startswith("original")}) == 1
    assert len({line["losses"]["4"] for line in lines.values()}) == 5
    for line in lines.values():
        assert set(line["losses"]) == {"1", "2", "4", "8"}
        assert set(line["factor"]) == {"equal", "1% more"}
        for less in ("1 times less", "4 times less"):
            assert line[less]["text"]
            assert line[less]["passkeys"] in (0, 1)
    assert [each["tokens"] for each in found["conversions"]] == [n * 2 * 32 for n in steps]
    for n in steps:
        losses = lines[f"converted, {n} steps"]["losses"]
        assert found["cost"][str(n * 2 * 32)] == losses["4"] - losses["1"]
        assert load(tmp_path / "runs" / str(n)).description.selects
    assert not list(tmp_path.glob("*.parts.jsonl"))


def test_what_is_expected_of_more_training(monkeypatch):
    """A power law that halves with three times the tokens halves once more with three times as many again."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from convert_pretrained import expected_tokens

    assert expected_tokens({100: 0.4, 300: 0.2}, 0.1) == pytest.approx(900)
    for nothing in ({100: 0.2, 300: 0.4}, {100: 0.4}, {100: 0.4, 300: 0.0}, {100: 0.4, 300: 0.3999}):
        assert expected_tokens(nothing, 0.1) is None


def test_a_whole_training_step_has_an_optimizer(tmp_path):
    rows = run("model_step.py", tmp_path, *["--d", "1", "--context", "32", "--batch", "2", "--repeats", "2"])["rows"]
    assert [row["what"] for row in rows] == ["forward", "forward + backward", "whole step"]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["selective"] / row["standard"])
        assert row["low"] <= row["high"]


def test_what_another_tokenizer_splits_differently_is_counted(tmp_path):
    models = [model_folder(tmp_path / name) for name in ("one", "other")]
    for model in models:  # as folders of older versions have it
        (model / "tokenizer.model").write_bytes(pieces())
    text = text_file(tmp_path / "text.txt")
    rows = run("splitting.py", tmp_path, *models, "--validation", "0.5", "--data", text)["rows"]
    names = [str(model) for model in models]
    assert [(row["models"], row["split"]) for row in rows] == [(names, "train"), (names, "validation")]
    assert sum(row["documents"] for row in rows) == 40
    assert all(row["documents_that_differ"] == row["places"] == 0 for row in rows)  # short ones never do


def test_places_are_where_two_ways_to_split_a_text_part():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from splitting import places
    finally:
        sys.path.pop(0)
    sizes = [1, 1, 2, 3]  # a, b, ab, abb
    assert places([0, 1, 2, 3], [0, 1, 2, 3], sizes) == 0
    assert places([2, 3, 0], [0, 1, 3, 0], sizes) == 1
    assert places([2, 0, 0, 3], [0, 1, 0, 0, 2, 1], sizes) == 2
    assert places([3, 3], [2, 1, 0, 1, 1], sizes) == 2


def test_the_gpu_benchmark_can_be_tried_without_a_gpu(tmp_path):
    pytest.importorskip("triton")
    found = run("gpu.py", tmp_path, "--dry-run", TRITON_INTERPRET="1")
    assert (found["dry_run"], found["device"]) == (True, "Triton's interpreter")
    forward = {row["name"] for row in found["rows"] if not row["backward"]}
    assert forward == {"flash", "triton", "flex", "literal"}
    assert {row["name"] for row in found["rows"] if row["backward"]} == forward - {"flex"}  # which has none on a CPU
    for row in found["rows"]:
        flash = next(x for x in found["rows"] if x["name"] == "flash" and x["backward"] == row["backward"])
        if row["forgets"]:
            assert row["ratio"] == pytest.approx(row["ms"] / flash["ms"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_gpu_benchmark_says_that_there_is_no_gpu(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    from gpu import main

    assert main() == 2
    said = "gpu.py: there is no CUDA device to time anything on (--dry-run tries it on the CPU)\n"
    assert capsys.readouterr().err == said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_are_compiled_and_recorded(tmp_path):
    pytest.importorskip("triton")
    options = ["--targets", "80", "--dtypes", "float16", "--sizes", "64", "--calls", "decode step", "--no-rarer"]
    found = run("gpu_compile.py", tmp_path, *options)
    (row,), (target,) = found["rows"], found["targets"]
    assert (row["kernel"], row["target"], row["dtype"]) == ("step", 80, "float16")
    assert 0 < row["shared"] <= row["limit"]
    assert (target["kernels"], target["fit"], target["spills_decode"]) == (1, 1, row["spills"])
    more = run("gpu_compile.py", tmp_path, *options, "--dtypes", "bfloat16", "--extend")
    assert [row["dtype"] for row in more["rows"]] == ["bfloat16", "float16"]
    assert more["rows"][1] == row
    (tmp_path / "record.json").write_text((tmp_path / "record.json").read_text().replace(found["kernels"], "others"))
    with pytest.raises(AssertionError, match="is of other kernels"):
        run("gpu_compile.py", tmp_path, *options, "--extend")


def test_what_kernels_should_take_is_counted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["gpu_cost.py", "--n", "2048", "--heads", "16", "--out", str(tmp_path / "c.json")])
    from gpu_cost import main

    main()
    found = records.read_record(tmp_path / "c.json")
    for card in ("A100", "H100"):
        rows = [row for row in found["rows"] if row["card"] == card and row["dim"] == 64]
        assert [row["living"] for row in rows] == [1.0, 0.5, 0.2, 0.1]
        assert [row["both_ms"] for row in rows] == sorted((row["both_ms"] for row in rows), reverse=True)
        assert rows[0]["forward_ratio"] > 1 > rows[2]["forward_ratio"]
    assert all(step["us"] < step["full_us"] for step in found["steps"])
