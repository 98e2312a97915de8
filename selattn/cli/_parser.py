"""How the command line is read: errors are raised, and FIELD=VALUE needs no option in front of it."""

import argparse
import re
from typing import Any, NoReturn

from selattn.errors import SelattnError

PLACEHOLDERS = """\
in commands and on their help pages:
  MODEL    a model's folder, a run's folder, or zoo:NAME (see 'selattn zoo')
  TEXT     c4, wikitext, lm1b, hub:OWNER/NAME, embedded (Python's own documentation), or
           a file or folder of yours: .txt, .jsonl, or .gz of these
  FOLDER   a folder of yours; one that is written is made if need be
  BUDGETS  how many tokens each layer may keep: 64, or 8,48,8, or a budgets file, or the
           folder that 'selattn prune' has written
  N, K     N tokens are the context, K of them are kept by a layer
"""


class CommandsFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves room for the longest command; argparse forgets by how much it indents them."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        longest = max(map(len, action.choices), default=0) if action.nargs == argparse.PARSER and action.choices else 0
        self._action_max_length = max(self._action_max_length, longest + 2 * self._indent_increment)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are raised like all bad input, not printed below the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing and exiting."""
        message = re.sub(r"^argument (\S+): (?=must )", r"\1 ", message)
        raise SelattnError(f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Where a command has `--set FIELD=VALUE`, a bare FIELD=VALUE means the same, wherever it stands."""
        if args is not None and "--set" in self._option_string_actions:
            taken = {name for name, action in self._option_string_actions.items() if action.nargs != 0}
            pairs = zip(["", *args], args, strict=False)
            args = [f"--set={w}" if re.match(r"[a-z][\w.]*=", w) and before not in taken else w for before, w in pairs]
        return super().parse_known_args(args, namespace)
