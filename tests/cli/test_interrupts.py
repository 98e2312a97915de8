"""Ctrl-C ends every command, also where the exception by which Python tells of it is cleared."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from selattn.cli.main import INTERRUPTED, guarded

LONG = 60  # seconds: far more than the test may take


def interrupted():
    """Ctrl-C, which C code clears."""
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def wait():
    for _ in range(100 * LONG):
        time.sleep(0.01)


def goes_on(argv):
    interrupted()
    wait()
    return 0


def fails_later(argv):
    interrupted()
    raise ImportError("cannot load module more than once per process")


def takes_long_to_end(argv):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        time.sleep(2.5)
        argv.append("ended")


@pytest.mark.parametrize("command", [goes_on, fails_later, takes_long_to_end])
def test_no_interrupt_is_lost(command, capsys):
    began, words, alarm = time.monotonic(), [], signal.getsignal(signal.SIGALRM)
    assert guarded(command, words) == INTERRUPTED
    assert time.monotonic() - began < LONG / 4
    assert capsys.readouterr().err == "\nselattn: interrupted\n"
    assert words == (["ended"] if command is takes_long_to_end else [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGALRM) is alarm


def test_an_import_ends_at_once(tmp_path):
    """The library that is loaded may be C++, which an exception of Python's aborts, or which clears it."""
    (tmp_path / "half.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
    )
    code = (
        "import sys; from selattn.cli.main import guarded; sys.exit(guarded(lambda argv: __import__('half') and 0, []))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])},
    )
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "\nselattn: interrupted\n")


def test_whoever_ends_by_itself_is_left_alone():
    """A server that stops at Ctrl-C, and so has ended well."""

    def serve(argv):
        interrupted()
        return 0

    assert guarded(serve, []) == 0


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "of the caller"])
def test_another_handler_stays(handler):
    def command(argv):
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is handler
        return 0

    before = signal.signal(signal.SIGINT, handler)
    try:
        assert guarded(command, []) == 0
    finally:
        signal.signal(signal.SIGINT, before)
