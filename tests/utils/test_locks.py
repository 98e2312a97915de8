"""One at a time, whatever becomes of the one before."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from selattn.errors import SelattnError
from selattn.utils.files import Lock, locked


def test_one_at_a_time(tmp_path):
    file = tmp_path / "file.lock"
    with locked(file, "taken"):
        assert file.exists()
        with pytest.raises(SelattnError, match="taken"), locked(file, "taken"):
            pass
        assert file.exists()
    assert not file.exists()
    with locked(file, "taken"):
        pass


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(SelattnError, match=r"cannot write .*lock: File exists"),
        locked(tmp_path / "file" / "x.lock"),
    ):
        pass


def test_what_another_has_is_not_free(tmp_path):
    first, second = Lock(tmp_path / ".lock"), Lock(tmp_path / ".lock")
    assert first.take_if_free()
    assert not second.take_if_free()
    assert not second.held
    first.close()
    assert second.take_if_free()
    second.close()


def test_a_claim_can_be_closed_twice_and_taken_again(tmp_path):
    lock = Lock(tmp_path / ".lock")
    lock.close()
    for _ in range(2):
        lock.take("taken")
        assert lock.held
        lock.close()
        lock.close()
        assert not lock.held


CHILD = """
import sys, time
from pathlib import Path
from selattn.utils.files import locked

with locked(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_holds_nothing(tmp_path):
    file = tmp_path / "file.lock"
    child = subprocess.Popen([sys.executable, "-c", CHILD, file], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "mine\n"
    with pytest.raises(SelattnError, match="taken"), locked(file, "taken"):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert file.exists()
    with locked(file, "taken"):
        pass
    assert not file.exists()


def test_of_many_who_wait_one_is_in(tmp_path):
    """Though whoever leaves removes the file that the others wait for, and one who comes then makes a new one."""
    file, inside, seen = tmp_path / "file.lock", [], []

    def go():
        for _ in range(10):
            with locked(file):
                inside.append(1)
                seen.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 40
    assert not file.exists()
