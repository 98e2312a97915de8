"""Resuming where files are damaged: what can be gone on from is, and is named; the rest is one line."""

import shutil

import pytest

from selattn.errors import SelattnError
from selattn.training import folder, train
from selattn.utils.progress import Progress
from tests.interrupted import Interrupt
from tests.training.tiny import log, same_run, tiny


class Said(Progress):
    """What is said of resuming."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        if not text.startswith("step "):
            self.lines.append(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    train(tiny(), path)
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """With checkpoints at steps 8 and 10 of 12."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    assert train(tiny(), path, progress=Interrupt(11)).interrupted
    return path


@pytest.fixture
def run(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def flip(file, at=0.5):
    """One bit of it."""
    raw = bytearray(file.read_bytes())
    raw[int(at * (len(raw) - 1))] ^= 1
    file.write_bytes(raw)


def contents(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_it_says_once_where_it_goes_on(run, whole):
    said = Said()
    train(tiny(), run, resume=True, progress=said)
    assert said.lines == ["resuming from step 10 of 12"]
    same_run(whole, run)
    train(tiny(), run, resume=True, progress=said)  # which has ended: nothing is resumed
    assert len(said.lines) == 1


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "progress.json"]


@pytest.mark.parametrize("name", [*FILES, "config.json"])
def test_a_bit_that_flipped_is_noticed(run, name):
    """Anywhere in a file; the checkpoint before it is whole."""
    for at in (0.0, 0.3, 0.9, 1.0):
        file = run / "checkpoint-10" / name
        before = file.read_bytes()
        flip(file, at)
        assert folder.choose(run).step == 8
        assert folder.choose(run).skipped[0][1] == f"{name} has changed since it was written"
        file.write_bytes(before)
    assert folder.choose(run) == folder.Plan(True, 10)


def test_a_damaged_checkpoint_is_skipped_and_named(run, whole):
    flip(run / "checkpoint-10" / "optimizer.pt")
    said = Said()
    train(tiny(), run, resume=True, progress=said)
    assert said.lines == [
        "checkpoint-10 is skipped: optimizer.pt has changed since it was written",
        "resuming from step 8 of 12",
    ]
    same_run(whole, run)


def test_where_all_are_damaged_nothing_is_begun_anew(run):
    flip(run / "checkpoint-10" / "model.safetensors")
    (run / "checkpoint-8" / "optimizer.pt").unlink()
    before = contents(run)
    with pytest.raises(SelattnError, match="there is no whole checkpoint in") as error:
        train(tiny(), run, resume=True)
    for part in (
        "checkpoint-10 (model.safetensors has changed",
        "checkpoint-8 (optimizer.pt is missing)",
        "--overwrite",
    ):
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(run) == before


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"files": 3}', '{"files": {"a": 1}}', '{"files": {"a": 1}, "checksums": 3}', ""]
)
def test_a_damaged_seal_is_no_seal(run, damage):
    (run / "checkpoint-10" / folder.WHOLE).write_text(damage)
    assert folder.newest(run) == 8
    plan = folder.choose(run)
    assert (plan.step, plan.skipped[0][1]) == (8, "whole.json is damaged")


@pytest.mark.parametrize("damage", [b"{", b"", b"[1]", b"\xff\xfe", b'"text"'])
def test_a_damaged_configuration_is_one_line(run, damage):
    (run / folder.CONFIG).write_bytes(damage)
    before = contents(run)
    with pytest.raises(SelattnError, match=r"run.json is damaged, .*: put it back .*--overwrite") as error:
        train(tiny(), run, resume=True)
    assert "\n" not in str(error.value)
    assert contents(run) == before


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe\0", b"[1]", b'{"loss": 1}', b'{"step": "3"}', b""])
def test_a_damaged_log_is_one_line(run, damage):
    """In front of the checkpoint; all that was logged after it would have been dropped."""
    lines = (run / folder.LOG).read_bytes().splitlines()
    (run / folder.LOG).write_bytes(b"\n".join([lines[0], damage, *lines[2:], b""]))
    before = contents(run)
    with pytest.raises(SelattnError, match=r"log.jsonl, line 2, is damaged: .* or delete it") as error:
        train(tiny(), run, resume=True)
    assert "\n" not in str(error.value)
    assert contents(run) == before


def test_what_is_damaged_behind_the_checkpoint_is_logged_again(run, whole):
    flip(run / "checkpoint-10" / "optimizer.pt")
    with (run / folder.LOG).open("ab") as file:
        file.write(b'\xff\xff\n{"step": 11}\nand more')
    assert max(record["step"] for record in log(run)) > 8
    train(tiny(), run, resume=True)
    same_run(whole, run)


@pytest.mark.parametrize("damage", ["{", "[1]", '{"steps": "12"}', ""])
def test_a_damaged_record_of_a_run_that_has_ended(whole, tmp_path, damage):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / folder.MODEL / folder.RECORD).write_text(damage)
    with pytest.raises(SelattnError, match=r"training_record.json is damaged: delete .*model and .* --resume"):
        train(tiny(), path, resume=True)
    shutil.rmtree(path / folder.MODEL)
    train(tiny(), path, resume=True)
    same_run(whole, path)
