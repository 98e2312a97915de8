"""The one exception that means "the input was wrong", as opposed to "the program is"."""


class SelattnError(ValueError):
    """Bad input: one line that says what was wrong and what to do instead.

    The command line prints that line and exits with 2, without a traceback. Anything else that is raised
    is a bug, and keeps its traceback.
    """


def shortened(name: object, most: int = 160) -> str:
    """A name for a message: of one that is longer than any name should be, both ends."""
    text = str(name)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]} ({len(text):,} characters)"
