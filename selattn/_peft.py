"""After `import selattn`, peft knows which layers of our models adapters go to when nobody names any.

peft looks that up by the type of a model, in tables of `peft.utils.constants`. Our layers have the names that Llama's
have, except for the norms. peft is optional and slow to import, so its tables are filled when it is imported: an import
hook waits for that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

AWAITED = "peft.utils.constants"
TABLES = ("TRANSFORMERS_MODELS_TO_", "_MODULES_MAPPING")  # how their names begin and end
TYPE, SIMILAR = "selattn", "llama"
NAMES = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}


def install() -> None:
    """Fill the tables now if they are there already, else as soon as they are."""
    if AWAITED in sys.modules:
        fill(sys.modules[AWAITED])
    elif not any(isinstance(finder, PeftFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PeftFinder())


def fill(constants: ModuleType) -> None:
    """Our entry in each table that has one of Llama's."""
    begin, end = TABLES
    for name, table in vars(constants).items():
        if name.startswith(begin) and name.endswith(end) and isinstance(table.get(SIMILAR), list):
            table.setdefault(TYPE, [NAMES.get(layer, layer) for layer in table[SIMILAR]])


class PeftFinder(MetaPathFinder):
    """Finds nothing by itself: it lets the other finders find the module, and has it filled once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for the module, made to fill it."""
        if fullname != AWAITED:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self.follow(spec.loader)
                return spec
        return None

    def follow(self, loader: Loader) -> None:
        """Have the loader, which is this module's alone, fill the tables when it is done."""
        execute: Callable[[ModuleType], None] = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            fill(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
