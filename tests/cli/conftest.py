"""The terminal of the one who runs the tests must not decide what they see."""

import pytest


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch):
    for name in ("COLORTERM", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
