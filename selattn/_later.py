"""Loading late: public names when they are first used, and our modules once another package is loaded.

`import selattn` makes transformers and peft know our models. They have no entry points, so a module of ours must run
after they are loaded, and loading them here would make `selattn --help` wait two seconds: so an import hook waits.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose public names are the imports of its `__init__.pyi`.

    A type checker reads that file; here each name is loaded when it is first used (PEP 562).
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    module = sys.modules[package]

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(__import__(homes[name], fromlist=[name]), name)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*vars(module), *homes}), sorted(homes)


def import_after(awaited: str, ours: str) -> None:
    """Import the module `ours` now if `awaited` is loaded already, else as soon as it is."""
    if awaited in sys.modules:
        import_module(ours)
        return
    HOOK.waiting[awaited] = ours
    if HOOK not in sys.meta_path:
        sys.meta_path.insert(0, HOOK)


class Later(MetaPathFinder):
    """Finds nothing by itself: it lets the other finders find, and watches the packages of the awaited modules.

    It acts when the outermost import from them is done: modules of a package import each other while half loaded.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}  # the awaited modules, and ours
        self._importing = threading.local()  # .depth: how many watched modules this thread is in the middle of

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for a watched module; its loader tells us when it is done."""
        if fullname.partition(".")[0] not in {awaited.partition(".")[0] for awaited in self.waiting}:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: Loader) -> None:
        execute: Callable[[ModuleType], None] = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self._importing.depth = getattr(self._importing, "depth", 0) + 1
            try:
                execute(module)
            finally:
                self._importing.depth -= 1
            if self._importing.depth == 0:
                self._import_ours()

        loader.exec_module = exec_module  # type: ignore[method-assign]  # the loader is this module's alone

    def _import_ours(self) -> None:
        for awaited in [each for each in self.waiting if each in sys.modules]:
            ours = self.waiting.pop(awaited)
            if not self.waiting:
                sys.meta_path.remove(self)
            if ours not in sys.modules:  # else it is the one that imports the package just now
                import_module(ours)


HOOK = Later()
