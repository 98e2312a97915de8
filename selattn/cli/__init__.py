"""The command line, one file per command.

A command is a module with `add_parser(subparsers)` and `run(args) -> exit code`. It imports torch, rich and
the like inside `run` only, so that `selattn --help` stays quick. Files with a leading underscore are parts
of a command.
"""
