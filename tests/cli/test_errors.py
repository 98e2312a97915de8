"""Bad input is one line on stderr and exit code 2; a bug keeps its traceback."""

import subprocess
import sys

import pytest

from selattn.cli import info
from selattn.cli.main import main
from selattn.errors import SelattnError


def test_bad_input_in_a_real_process():
    done = subprocess.run(
        [sys.executable, "-m", "selattn", "inof"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "selattn: error: unknown command 'inof'; did you mean 'info'?\n"


def run_with(monkeypatch, error):
    def run(args):
        raise error

    monkeypatch.setattr(info, "run", run)
    return main(["info"])


def test_an_error_of_a_command_stays_one_line(monkeypatch, capsys):
    assert run_with(monkeypatch, SelattnError("q is longer\n   than k; give k at least as many tokens")) == 2
    assert capsys.readouterr().err == "selattn: error: q is longer than k; give k at least as many tokens\n"


def test_ctrl_c(monkeypatch, capsys):
    assert run_with(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "\nselattn: interrupted\n"


def test_a_bug_is_not_hidden(monkeypatch):
    with pytest.raises(ValueError, match="a bug"):
        run_with(monkeypatch, ValueError("a bug"))


def test_a_closed_pipe_is_quiet():
    """The reader goes away before anything was written, as `head` may do."""
    process = subprocess.Popen(
        [sys.executable, "-m", "selattn", "info", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 1
    assert err == b""
