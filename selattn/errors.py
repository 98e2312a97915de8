"""The one exception that means "the input was wrong", as opposed to "the program is"."""


class SelattnError(ValueError):
    """Bad input: one line that says what was wrong and what to do instead.

    The command line prints that line and exits with 2, without a traceback. Anything else that is raised
    is a bug, and keeps its traceback.
    """
