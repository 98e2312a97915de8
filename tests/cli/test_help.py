"""The command line answers at once: nothing heavy is loaded before a command runs."""

import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import selattn
from selattn.cli.main import COMMANDS, build_parser

ROOT = Path(__file__).parents[2]


def selattn_command(*args):
    return subprocess.run([sys.executable, "-m", "selattn", *args], capture_output=True, text=True, check=False)


def test_help_takes_less_than_a_second():
    """The best of several runs, so that a busy machine does not decide; importing torch alone takes longer."""

    def seconds():
        start = time.perf_counter()
        assert selattn_command("--help").returncode == 0
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 1.0


def test_building_the_parser_loads_nothing_heavy():
    """What the time limit is about, said in a way that no fast machine can hide."""
    code = "import sys; from selattn.cli.main import build_parser; build_parser(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "selattn.cli.eval" in loaded
    assert not loaded & {"torch", "numpy", "transformers", "rich", "matplotlib", "datasets"}


def test_help_lists_every_command():
    text = selattn_command("--help").stdout
    assert all(f"\n    {name} " in text for name in COMMANDS)


def test_every_command_file_is_listed():
    """A file without a leading underscore is a command; a forgotten entry in `COMMANDS` is found here."""
    files = {path.stem for path in (ROOT / "selattn" / "cli").glob("[!_]*.py")}
    assert files - {"main", "settings"} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args([name, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: selattn {name} ")


def test_version():
    assert selattn_command("--version").stdout == f"selattn {selattn.__version__}\n"


def test_the_installed_script_is_this_entry_point():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"selattn": "selattn.cli.main:main"}
