"""Run transformers' own test suite on our models, from a checkout of transformers.

    python -m tools.transformers_suite /path/to/transformers [options of pytest]

The checkout's library is used together with its tests, so what that version requires has to be installed, and what its
tests import (parameterized, httpx). The exit code is 0 if nothing fails but what is listed below.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASES = Path(__file__).with_name("transformers_cases.py")
REENTRANT = "test_training_gradient_checkpointing_use_reentrant_true"
EXPECTED = dict.fromkeys(
    (f"RotaryModelTest::{REENTRANT}", f"LearnedModelTest::{REENTRANT}"),
    "reentrant checkpointing is refused: it can lose gradients",
)


def main(arguments: list[str]) -> int:
    """Run the suite; 1 if a test fails that is not expected to."""
    if not arguments:
        print(__doc__)
        return 2
    checkout, *options = arguments
    folder = Path(checkout).resolve()
    for needed in ("src/transformers", "tests/causal_lm_tester.py", "conftest.py"):
        if not (folder / needed).exists():
            print(f"{folder} is no checkout of transformers: it has no {needed}", file=sys.stderr)
            return 2
    failed, status = run(folder, options)
    if not failed and status:
        print("pytest found no failed test, but did not end well either", file=sys.stderr)
        return 1
    for name in sorted(failed):
        print(f"{name}: {EXPECTED.get(name, 'NOT EXPECTED')}")
    return int(bool(failed - EXPECTED.keys()))


def run(folder: Path, options: list[str]) -> tuple[set[str], int]:
    """Which tests fail, and pytest's exit code; what pytest says is passed on as it comes."""
    path = [str(folder / "src"), str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "test_selattn.py"  # apart from our own tests, and from what pytest reads beside them
        shutil.copy(CASES, file)
        command = [sys.executable, "-m", "pytest", "-c", str(folder / "pyproject.toml"), "--rootdir", str(folder)]
        command += [
            "-p",
            "conftest",
            "-p",
            "no:cacheprovider",
            "--import-mode=importlib",
            "-o",
            "log_cli=0",
            "-q",
            "-rfE",
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1"}
        failed = set()
        with subprocess.Popen(
            [*command, str(file), *options], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                if found := re.match(r"(?:FAILED|ERROR|SUBFAILED\S*) .*?(\w+::test_\w+)", line):
                    failed.add(found[1])
    return failed, process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
