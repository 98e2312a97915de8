"""Every command refuses what it cannot do: exit code 2, one line that names the fault, and nothing left behind."""

import contextlib
import json
import math
import os
import shutil
import socket
from pathlib import Path

import pytest

from selattn import SelectiveForCausalLM
from selattn.cli.main import COMMANDS, main
from tests.cli.bad_inputs import CASES, HUGE, NAMES
from tests.evaluation import questions
from tests.evaluation.folders import model_folder, text_file
from tests.models.stock.llama2c import write_checkpoint, write_tokenizer
from tests.models.tiny import tiny

MEASURED = {"command": "selattn", "date": "today", "seed": 0, "versions": {}, "machine": {}}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with models, texts, questions and records, whole and damaged."""
    here = tmp_path_factory.mktemp("bad inputs")
    models(here)
    text_file(here / "text.txt", documents=40)
    text_file(here / "short.txt", documents=60, words=3)
    (here / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (here / "empty.txt").touch()
    (here / "notes.pdf").write_text("no text")
    (here / "rows.jsonl").write_text('{"text": "the cat sat"}\n' * 9)
    (here / "large.json").write_text(json.dumps([HUGE, HUGE]))
    for name in ("train.txt", "validation.txt"):
        (here / "splits").mkdir(exist_ok=True)
        text_file(here / "splits" / name, documents=4)
    questions.write(here / "questions")
    (here / "questions" / "notes.txt").touch()  # an empty file is no matter where it is not asked for
    (here / "questions" / "broken.jsonl").write_text("{")
    for folder, files in {"twice": ("piqa_1", "piqa_2"), "faulty": ("piqa",), "blank": ("piqa",)}.items():
        (here / folder).mkdir()
        for name in files:
            (here / folder / f"{name}.jsonl").write_text("\n" if folder == "blank" else "{")
    records(here)
    for name in ("llama", "cut"):
        (here / name).mkdir()
        write_checkpoint(here / name / "model.bin", write_tokenizer(here / name / "tok.bin"))
    cut(here / "cut" / "model.bin")
    return here


@pytest.fixture(scope="module", autouse=True)
def _no_device_is_replaced(here):
    """A file that is written whole takes the place of what has its name: root could lose /dev/null by it.

    The table names sockets in the place of devices, so that a mistake costs nothing.
    """
    devices = [Path("/dev/null"), Path("/dev/full")]
    sockets = [here / f"socket.{suffix}" for suffix in ("json", "png", "html")]
    for path in sockets:
        with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(here):
            made.bind(path.name)
    yield
    assert all(path.is_char_device() for path in devices)
    assert all(path.is_socket() for path in sockets)


def models(here):
    for name, changes in {"model": {}, "second": {"seed": 1}, "other": {"size": 290}}.items():
        model_folder(here / name, **changes)
    model_folder(here / "turning", positions="rotary")
    for name in ("damaged", "garbled", "odd", "foreign", "unreadable", "listed"):
        shutil.copytree(here / "model", here / name)
    cut(here / "damaged" / "model.safetensors")
    model_folder(here / "standard", attention="standard")
    spoilt = SelectiveForCausalLM.from_pretrained(model_folder(here / "spoilt"))
    spoilt.model.layers[0].attention.q_proj.weight.data.fill_(math.nan)
    spoilt.save_pretrained(here / "spoilt")
    (here / "garbled" / "tokenizer.json").write_text("{")
    (here / "odd" / "tokenizer.json").write_text("{}")
    (here / "closed").mkdir()
    (here / "foreign" / "config.json").write_text('{"model_type": "bert"}')
    (here / "unreadable" / "config.json").write_bytes(b"\xff")
    (here / "listed" / "config.json").write_text("[]")
    tiny().save_pretrained(here / "untold")


def records(here):
    for seed in (0, 1):
        of = [{"model": "model", "training_seed": seed, "policy": None, "search": None}]
        points = [
            {
                "kv_size": size,
                "memory_factor": 32 / size,
                "loss": {"text": 4 + 1 / size + seed},
                "held": [size],
                "read": [size],
                "budgets": [size],
            }
            for size in (32, 8)
        ]
        curve = {"name": "x", "of": of, "points": points, "at_the_baselines_loss": {}}
        about = {"context": 32, "texts": {"text": {"rows": 3, "tokens": 9}}, "skip": 0, "baseline": None}
        (here / f"curve-{seed}.json").write_text(json.dumps({**MEASURED, **about, "curves": [curve]}))
    shutil.copy(here / "curve-0.json", here / "again-0.json")
    (here / "half.json").write_text(json.dumps({**MEASURED, "curves": []}))
    search = {
        **MEASURED,
        "model": "m",
        "until": ["floor"],
        "policy": "selective",
        "text": {"source": "text.txt"},
        "procedure": {"context": 32, "step": 4, "floor": None, "lazy": False},
        **{key: {"search": 3, "report": 4} for key in ("rows", "tokens")},
        "budgets": [4, 4],
        "iteration": 0,
        "memory_factor": 8.0,
        "at_floor": True,
        "path": [],
        "search_loss": 4.0,
        "search_limit": None,
        "report": {"pruned": 4.0},
    }
    (here / "search-0.json").write_text(json.dumps(search))


def cut(file):
    file.write_bytes(file.read_bytes()[:-100])


@pytest.fixture(scope="module", autouse=True)
def _search(here, _world):
    """A search to be taken up, or not."""
    data = ["--data", "text.txt", "--validation", "0.8", "--rows", "6", "--report-rows", "5", "--step", "4"]
    assert main(["prune", "model", *data, "--batch", "2", "--until", "factor=1.1", "--out", "search"]) == 0


@pytest.fixture(scope="module", autouse=True)
def _world(here, tmp_path_factory):
    """The folder `closed` is one in which nothing can be written; root may write in each that is not mounted so."""
    may = os.access
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("SELATTN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("SELATTN_ZOO", str(here / "no zoo"))
        patch.setattr(os, "access", lambda path, mode: Path(path).name != "closed" and may(path, mode))
        yield


def listing(folder):
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}, {
        path for path in folder.rglob("*") if path.is_dir()
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("argv", "says"), CASES, ids=NAMES)
def test_refused_in_one_line(argv, says, here, capsys):
    before = listing(here)
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("selattn: error: ")
    assert err.count("\n") == 1
    assert says in err
    assert len(err) < 800
    assert listing(here) == before


def test_the_table_is_about_every_command():
    assert len(CASES) >= 150
    assert set(COMMANDS) - {argv[0] for argv, _ in CASES if argv} == set()  # a new one gets a part in bad_inputs.py


def test_no_case_is_there_twice():
    assert len({tuple(argv) for argv, _ in CASES}) == len(CASES)
