"""A file is the old one or the new one, and what the system says is one line."""

import errno
import os

import pytest

from selattn.errors import CannotWriteError, SelattnError
from selattn.utils.files import replacing, write_bytes, write_json, write_text, writing


def test_folders_above_are_made(tmp_path):
    write_text(tmp_path / "a" / "b" / "text", "ä\n")
    assert (tmp_path / "a" / "b" / "text").read_bytes() == "ä\n".encode()
    write_json(tmp_path / "x.json", {"a": [1]})
    assert (tmp_path / "x.json").read_text() == '{\n  "a": [\n    1\n  ]\n}\n'


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a bug"), OSError(errno.ENOSPC, "full")], ids=repr)
def test_what_goes_wrong_leaves_the_old_file(tmp_path, error):
    file = tmp_path / "file"
    write_bytes(file, b"old")

    def write():
        with replacing(file) as part:
            part.write_bytes(b"half of the new")
            raise error

    with pytest.raises(CannotWriteError if isinstance(error, OSError) else type(error)):
        write()
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_device_is_not_replaced(tmp_path):
    """As root one could be: a pipe stands for it here."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(SelattnError, match=f"cannot write .*{name}: it is no ordinary file"):
            write_text(tmp_path / name, "text")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda one, other: (order.append("replace"), replace(one, other)))
    write_bytes(tmp_path / "file", b"new")
    assert order == [str(tmp_path / "file.part"), "replace", str(tmp_path)]


@pytest.mark.parametrize(
    ("number", "advice", "full", "line"),
    [
        (errno.ENOSPC, "", True, "cannot write a/b: No space left on device; free some space, or write elsewhere"),
        (errno.EDQUOT, "do this", True, "cannot write a/b: Disk quota exceeded; do this"),
        (errno.EACCES, "", False, "cannot write a/b: Permission denied"),
        (errno.EACCES, "do this", False, "cannot write a/b: Permission denied; do this"),
    ],
)
def test_one_line(tmp_path, number, advice, full, line):
    with pytest.raises(SelattnError) as caught, writing("a/b", advice):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == line
    assert (caught.value.full, caught.value.reason) == (full, os.strerror(number))
