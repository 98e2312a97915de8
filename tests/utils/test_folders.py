"""Whole or not at all: after errors, interrupts, kills and races."""

import errno
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from selattn.errors import SelattnError
from selattn.utils.folders import cache_folder, make_folder


def contents(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_folder_appears_complete(tmp_path):
    path = tmp_path / "deep" / "folder"

    def fill(part):
        (part / "a").write_text("x")
        assert not path.exists()

    assert make_folder(path, fill)
    assert contents(tmp_path) == ["deep", "deep/folder", "deep/folder/a"]
    assert not make_folder(path, fill)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a bug"), SelattnError("bad text")], ids=repr)
def test_what_goes_wrong_leaves_nothing(tmp_path, error):
    def fill(part):
        (part / "sub").mkdir()
        (part / "sub" / "a").write_text("half of it")
        raise error

    with pytest.raises(type(error)):
        make_folder(tmp_path / "folder", fill)
    assert contents(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("place", ["cache", "elsewhere"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, number, place):
    """The cache can be moved by its variable; a model that was asked for there cannot."""
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path if place == "cache" else "/nowhere"))
    advice = "set SELATTN_CACHE" if place == "cache" else "write elsewhere"

    def fill(part):
        (part / "a").write_text("half of it")
        raise OSError(number, "full")

    with pytest.raises(SelattnError, match=rf"cannot write .*folder: .*nothing is left of it.*, or {advice}") as error:
        make_folder(tmp_path / "folder", fill)
    assert "\n" not in str(error.value)
    assert contents(tmp_path) == []


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SelattnError, match=r"cannot write .*folder: "):
        make_folder(tmp_path / "file" / "folder", lambda part: None)


CHILD = """
import sys, time
from pathlib import Path
from selattn.utils.folders import make_folder

def fill(part):
    (part / "half").write_text("x")
    print("filling", flush=True)
    time.sleep(600)

make_folder(Path(sys.argv[1]), fill)
"""


def test_after_a_kill_the_next_attempt_starts_afresh(tmp_path):
    path = tmp_path / "folder"
    child = subprocess.Popen([sys.executable, "-c", CHILD, path], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "filling\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert not path.exists()
    assert contents(tmp_path) == ["folder.lock", "folder.part", "folder.part/half"]
    assert make_folder(path, lambda part: (part / "whole").write_text("x"))
    assert contents(tmp_path) == ["folder", "folder/whole"]


@pytest.fixture
def threads_that_switch_all_the_time():
    """So that one thread is often in the middle of another's few lines."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("threads_that_switch_all_the_time")
@pytest.mark.parametrize("failures", [0, 3])
def test_of_many_that_want_it_one_makes_it(tmp_path, failures):
    """If one fails, another takes over. Threads are enough: the lock belongs to the open file."""
    for number in range(30):
        folder = tmp_path / str(number)
        results = race(folder / "folder", failures)
        assert sorted(map(str, results)) == sorted(["failed"] * failures + ["True"] + ["False"] * (7 - failures))
        assert contents(folder) == ["folder", "folder/a"]


def race(path, failures):
    """What `make_folder` gave to each of eight threads; the first fills fail."""
    lock, fills, results = threading.Lock(), [], []

    def fill(part):
        with lock:
            fills.append(part)
            number = len(fills)
        assert contents(part) == []
        (part / "a").write_text("x")
        if number <= failures:
            raise RuntimeError("not this time")

    def want():
        try:
            results.append(make_folder(path, fill))
        except RuntimeError:
            results.append("failed")
        except SelattnError as error:
            results.append(error)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_the_place_of_the_cache_is_a_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SELATTN_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "selattn"
