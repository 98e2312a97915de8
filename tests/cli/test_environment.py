"""What is the machine's fault is one line, too: full disks, input that is no text, memory that is not there."""

import contextlib
import errno
import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from selattn.cli import info
from selattn.cli import main as cli_main
from selattn.cli.main import main
from selattn.evaluation import speed
from tests.evaluation.folders import model_folder, text_file
from tests.models.stock.llama2c import write_checkpoint, write_tokenizer

TEXT = ["--data", "text.txt", "--validation", "0.8", "--rows", "6"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    path = tmp_path_factory.mktemp("environment")
    model_folder(path / "model")
    text_file(path / "text.txt", documents=40)
    (path / "llama").mkdir()
    write_checkpoint(path / "llama" / "model.bin", write_tokenizer(path / "llama" / "tok.bin"))
    return path


@pytest.fixture(autouse=True)
def _in_it(here, monkeypatch):
    monkeypatch.chdir(here)
    monkeypatch.setenv("SELATTN_CACHE", str(here / "cache"))


@contextlib.contextmanager
def files_of_at_most(size):
    """The system refuses longer ones, as it refuses all where a disk is full; Python gets an error for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refused(argv, capsys):
    """The one line."""
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("selattn: error: ")
    assert err.count("\n") == 1
    return err


def everything():
    return sorted(path for path in Path().rglob("*") if "cache" not in path.parts)


# ---- full disks ----


@pytest.mark.parametrize("size", [100, 20_000])
def test_convert(capsys, size):
    """Full at the run's configuration, or at the weights of its first checkpoint."""
    text = ["--data", "text.txt", "--validation", "0.8", "--context", "24"]
    command = ["convert", "llama", *text, "--out", "new", "schedule.steps=2", "batch.size=1", "evaluation.rows=2"]
    refused([*command, "conversion.masks=3"], capsys)  # the token stores are there now
    with files_of_at_most(size):
        assert main([*command, "--overwrite"]) == 2
        said = capsys.readouterr().err.splitlines()[-1]  # after the losses of the training
        assert said.startswith("selattn: error: cannot write")
        assert "File too large" in said or "the disk is full" in said
    assert not list(Path().glob("new/checkpoint-*"))
    assert not Path("new/model").exists()


@pytest.mark.parametrize("size", [50, 400])
def test_eval_that_can_keep_nothing(capsys, size):
    main(["eval", "model", *TEXT])  # so that the token store is there
    capsys.readouterr()
    before = everything()
    with files_of_at_most(size):
        assert "cannot write new.json.parts.jsonl" in refused(["eval", "model", *TEXT, "--record", "new.json"], capsys)
    assert everything() == before


def test_eval_keeps_what_was_measured(capsys):
    """The parts are whole when the disk is full, the record is not: the same command goes on."""
    command = ["eval", "model", *TEXT, "--record", "kept.json"]
    assert main([*command[:-1], "whole.json"]) == 0
    capsys.readouterr()
    with files_of_at_most(Path("whole.json").stat().st_size - 100):
        assert "what was measured is kept beside it" in refused(command, capsys)
    assert sorted(path.name for path in Path().glob("kept*")) == ["kept.json.parts.jsonl"]
    assert main(command) == 0
    assert "1 of 1 parts were measured before" in capsys.readouterr().err
    assert sorted(path.name for path in Path().glob("kept*")) == ["kept.json"]


@pytest.mark.parametrize("size", [10, 300])
def test_prune_that_cannot_begin(capsys, size):
    main(["eval", "model", *TEXT])
    capsys.readouterr()
    before = everything()
    command = ["prune", "model", *TEXT, "--report-rows", "5", "--until", "factor=1.1", "--out", "deep/new"]
    with files_of_at_most(size):
        assert "cannot write deep/new" in refused(command, capsys)
    assert everything() == before


@pytest.mark.parametrize("command", ["selattn info --json", "lab demo --example"])
def test_output_to_a_full_device(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "selattn: error: cannot write all of it: No space left on device; free some space, or write elsewhere\n"
    )


def test_errors_to_a_full_device():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "selattn", "inof"], stderr=full, timeout=200, check=False)
    assert done.returncode == 2


# ---- input ----


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (io.TextIOWrapper(io.BytesIO(b"abc\xff"), "utf-8"), "standard input is not UTF-8: byte 3 is 0xff"),
        (None, "there is no prompt"),
    ],
)
def test_standard_input(given, says, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", given)
    assert says in refused(["generate", "model", "--max-new-tokens", "3"], capsys)


def test_standard_input_is_a_prompt(capsys, monkeypatch):
    said = []
    for given, more in ((b"the cat\n", []), (None, ["--prompt", "the cat\n"])):
        monkeypatch.setattr(sys, "stdin", given and io.TextIOWrapper(io.BytesIO(given), "utf-8"))
        assert main(["generate", "model", "--max-new-tokens", "3", *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


# ---- memory ----


@pytest.mark.parametrize(("free", "says"), [(10**9, "and 1.0 GB are free"), (10**30, "there is not enough memory for")])
def test_a_size_that_no_memory_holds(free, says, capsys, monkeypatch):
    """Seen beforehand, or else when torch asks for it."""
    monkeypatch.setattr("selattn.utils.memory.available_memory", lambda: free)
    monkeypatch.setattr(speed, "check", lambda *args: None)
    assert says in refused(["bench", "--n", "100000000"], capsys)


# ---- what is ours and what is not ----


def allocation(size):
    try:
        torch.empty(size, dtype=torch.float64)
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "there is not enough memory: choose smaller sizes"),
        (allocation(2**50), f"there is not enough memory for {2**53:,} bytes at once: choose smaller sizes"),
        (allocation(2**62), "there is not enough memory"),
        (OSError(errno.ENOSPC, "", "a/b"), "cannot write a/b: No space left on device"),
        (OSError(errno.EDQUOT, ""), "cannot write all of it: Disk quota exceeded"),
        (PermissionError(errno.EACCES, "", "a/b"), "cannot use a/b: Permission denied"),
        (OSError(errno.EROFS, "", "a/b"), "cannot use a/b: Read-only file system"),
        (OSError(errno.EMFILE, ""), "the system refuses: Too many open files"),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), "No space left"),
        (UnicodeDecodeError("utf-8", b"a\xff", 1, 2, ""), "what is read is not UTF-8: byte 1 is 0xff"),
        (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, ""), r"a name or a text is not UTF-8: '\udcff'"),
    ],
    ids=repr,
)
def test_faults_of_the_machine_are_one_line(error, says, capsys, monkeypatch):
    monkeypatch.setattr(info, "run", lambda args: (_ for _ in ()).throw(error))
    assert says in refused(["info"], capsys)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "", "a/b"),
        IsADirectoryError(errno.EISDIR, "", "a/b"),
        OSError("without a number"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        SafetensorError("a tensor is missing"),
        KeyError("x"),
        ValueError("x"),
    ],
    ids=repr,
)
def test_what_may_be_our_own_mistake_is_not(error, monkeypatch):
    assert cli_main.fault(error) is None
    monkeypatch.setattr(info, "run", lambda args: (_ for _ in ()).throw(error))
    with pytest.raises(type(error)):
        main(["info"])
