"""Import a module of ours as soon as, and not before, somebody has loaded a certain module of another package.

`import selattn` makes transformers and peft know our models. They have no entry points, so something of ours must run
after they are loaded, and loading them here would make `selattn --help` wait two seconds: so an import hook waits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_after(awaited: str, ours: str) -> None:
    """Import the module `ours` now if `awaited` is there already, else as soon as it is."""
    if awaited in sys.modules:
        import_module(ours)
    elif not any(isinstance(finder, Later) and finder.ours == ours for finder in sys.meta_path):
        sys.meta_path.insert(0, Later(awaited, ours))


class Later(MetaPathFinder):
    """Finds nothing by itself: it lets the other finders find, and follows what is imported from the awaited package.

    It acts when the outermost import from that package is done: its modules import each other while half loaded.
    """

    def __init__(self, awaited: str, ours: str) -> None:
        self.awaited, self.ours = awaited, ours
        self._importing = threading.local()  # .depth: how many modules of the package this thread is in the middle of

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for a module of the package, made to call us."""
        if fullname.partition(".")[0] != self.awaited.partition(".")[0]:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Loader) -> None:
        """Have the loader, which is this module's alone, tell when it begins and when it is done."""
        execute: Callable[[ModuleType], None] = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self._importing.depth = getattr(self._importing, "depth", 0) + 1
            try:
                execute(module)
            finally:
                self._importing.depth -= 1
            if self._importing.depth == 0 and self.awaited in sys.modules:
                self._done()

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def _done(self) -> None:
        """Go out of the way, and import ours (unless it is ours that is importing the package just now)."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            if self.ours not in sys.modules:
                import_module(self.ours)
