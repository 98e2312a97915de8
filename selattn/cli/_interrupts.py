"""Ctrl-C that cannot get lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

AGAIN = 1.0  # seconds


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Ctrl-C ends what runs inside, even where C code clears the exception by which Python tells of it.

    torch does so while its library loads numpy, and goes on with half of numpy: then whatever fails is the interrupt,
    and what does not fail is interrupted again, each second, unless it is busy with ending.
    """
    mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored (nohup), or somebody else's
    if not mine or threading.current_thread() is not threading.main_thread():  # no signal arrives in other threads
        yield
        return
    before: list[Any] = []  # of the timer, once there was a Ctrl-C

    def again(*_: Any) -> None:
        if not _handled():
            raise KeyboardInterrupt

    def interrupt(*_: Any) -> NoReturn:
        if not before:
            before.extend([signal.signal(signal.SIGALRM, again), signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)])
        raise KeyboardInterrupt

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


def _handled() -> bool:
    """Whether an interrupt is on its way out: an `except` or a `finally` of this thread is at work because of it."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
