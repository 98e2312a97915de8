"""Ctrl-C ends every command, also where the exception by which Python tells of it is cleared."""

import contextlib
import os
import signal
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
