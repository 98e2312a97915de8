"""`python -m lab NAME ...`: an experiment by its name, or one of these commands.

demo      the whole story in minutes, with a report
list      the experiments, what they cost, and what is recorded
again     run a record again, and compare
results   write docs/results.md from the records
mixture   build the broad English text
queue     work through a list of tables, resuming wherever it stood
show      a few samples of a synthetic task
train     one of the lab's runs; options as in `selattn train`
zoo       train and export the models of the zoo
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from selattn.cli.main import guarded

COMMANDS = {
    "demo": "lab.demo.command",
    "mixture": "lab.mixture",
    "queue": "lab.queue",
    "show": "lab.tasks.show",
    "train": "lab.runs.train",
    "zoo": "lab.zoo",
}


def dispatch(argv: Sequence[str]) -> int:
    """Run the command that the first word names, or else experiments."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__, end="")
        return 0
    if argv[0] in COMMANDS:
        code: int = import_module(COMMANDS[argv[0]]).main(argv[1:])
        return code
    from lab.reproduce import main

    return main(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return guarded(dispatch, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
