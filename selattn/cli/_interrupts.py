"""Ctrl-C that cannot get lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

AGAIN = 1.0  # seconds


@contextlib.contextmanager
def heard(code: int, said: str) -> Iterator[None]:
    """Ctrl-C ends what runs inside, even where C code loses the exception by which Python tells of it.

    torch does so while it is imported: it clears what numpy raises and goes on with half of numpy, or aborts. So within
    an import the process ends at once. Elsewhere, what fails after an interrupt is the interrupt, and what does not end
    is interrupted again, each second, unless it is busy with ending.

    Args:
        code: that the process ends with within an import.
        said: what it writes then.
    """
    mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored (nohup), or somebody else's
    if not mine or threading.current_thread() is not threading.main_thread():  # no signal arrives in other threads
        yield
        return
    before: list[Any] = []  # of the timer, once there was a Ctrl-C

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _importing(frame):
            with contextlib.suppress(Exception):  # it may be in the middle of a print, which cannot begin another
                sys.stdout.flush()
            os.write(2, said.encode())
            os._exit(code)
        if not before:
            before.extend([signal.signal(signal.SIGALRM, again), signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)])
        raise KeyboardInterrupt

    def again(number: int, frame: FrameType | None) -> None:
        if not _ending():
            interrupt(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if before:
            raise KeyboardInterrupt from None
        raise
    finally:
        if before:
            signal.setitimer(signal.ITIMER_REAL, *before[1])
            signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _importing(frame: FrameType | None) -> bool:
    """Whether an import is under way."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _ending() -> bool:
    """Whether an interrupt is on its way out: an `except` or a `finally` of this thread is at work because of it."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
