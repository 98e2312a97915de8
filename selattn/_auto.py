"""After `import selattn`, transformers' `Auto` classes know the models, and yet nothing heavy is loaded too early.

`AutoConfig` and the others are told of the models by `selattn.models`, when it is imported (`selattn/models/auto.py`).
What is left to do is to import it as soon as, and not before, somebody can ask them: when transformers has loaded
`AutoConfig`. An import hook waits for that. It acts when the outermost import from transformers is done, because
modules of transformers import the `Auto` classes while they are themselves half loaded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

LIBRARY = "transformers"
AWAITED = "transformers.models.auto.configuration_auto"
MODELS = "selattn.models"


def install() -> None:
    """Import the models now if `AutoConfig` is there already, else as soon as it is."""
    if AWAITED in sys.modules:
        import_module(MODELS)
    elif not any(isinstance(finder, AutoFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AutoFinder())


class AutoFinder(MetaPathFinder):
    """Finds nothing by itself: it lets the other finders find, and follows what is imported from transformers."""

    def __init__(self) -> None:
        self.importing = threading.local()  # .depth: how many modules of transformers this thread is in the middle of

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for a module of transformers, made to call us."""
        if fullname.partition(".")[0] != LIBRARY:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self.follow(spec.loader)
                return spec
        return None

    def follow(self, loader: Loader) -> None:
        """Have the loader, which is this module's alone, tell when it begins and when it is done."""
        execute: Callable[[ModuleType], None] = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self.importing.depth = getattr(self.importing, "depth", 0) + 1
            try:
                execute(module)
            finally:
                self.importing.depth -= 1
            if self.importing.depth == 0 and AWAITED in sys.modules:
                self.done()

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def done(self) -> None:
        """Go out of the way, and import the models (unless it is they who are importing transformers just now)."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            if MODELS not in sys.modules:
                import_module(MODELS)
