"""A training that is interrupted like a user's."""

import signal

from selattn.utils.progress import Progress


class Interrupt(Progress):
    """Presses Ctrl-C in the middle of the step before `at`."""

    def __init__(self, at):
        self.at, self.step = at, 0

    def begin(self, total, title="", done=0, **how):
        self.step = done

    def advance(self, by=1, text=None):
        self.step += by
        if by and self.step == self.at - 1:
            signal.raise_signal(signal.SIGINT)
