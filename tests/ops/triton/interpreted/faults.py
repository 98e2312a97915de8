"""Kernels that are made wrong on purpose, so that what should catch them can show that it does."""

import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from selattn.ops.backends.triton import kernels


@contextmanager
def changed(folder, file, old, new):
    """The kernels with a change in one place, in a folder of their own: Triton reads their source."""
    shutil.copytree(Path(kernels.__file__).parent, folder)
    text = (folder / file).read_text()
    assert text.count(old) == 1
    if "\n" in new:  # another line, as far to the right
        line = next(line for line in text.splitlines() if old in line)
        new = new.replace("\n ", "\n" + line[: len(line) - len(line.lstrip())])
    (folder / file).write_text(text.replace(old, new))

    def purged():
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(kernels.__name__ + ".")}

    before = purged()
    try:
        with mock.patch.object(kernels, "__path__", [str(folder)]):
            yield
    finally:
        purged()
        sys.modules.update(before)
