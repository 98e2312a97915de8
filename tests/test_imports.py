"""Imports point one way between the folders, and what is slow to load is loaded late."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import selattn

ROOT = Path(__file__).parents[1]


def test_folders_import_one_way():
    """The order is in pyproject.toml. A new folder has to be given its place there: the contract is exhaustive."""
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rooms_above_the_models_name_no_class_of_them():
    """They use the seam: what is evaluated, searched, drawn and served need not be one of ours."""
    from selattn import models

    rooms = ("evaluation", "pruning", "views", "cli")
    names = [name for name in dir(models) if name.startswith("Selective")]
    assert {"SelectiveConfig", "SelectiveForCausalLM", "SelectiveModel"} <= set(names)
    named = re.compile(rf"\b({'|'.join(names)}|SelectivePreTrainedModel|from_pretrained)\b")
    files = [file for room in rooms for file in (ROOT / "selattn" / room).rglob("*.py")]
    assert len(files) > 30
    found = [f"{file.relative_to(ROOT)}: {match[0]}" for file in files if (match := named.search(file.read_text()))]
    assert found == []


def loaded_by(statement):
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_selattn_is_light():
    assert not loaded_by("import selattn") & {"torch", "numpy", "transformers", "rich"}


def imported(file):
    """The modules and names that a file imports, dotted."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_nothing_private_is_imported_from_another_folder():
    """Of a module `selattn.room._name`, or of a name `_name` in one, only its own folder knows, and its tests."""
    found = []
    for file in (path for part in ("selattn", "tests", "tools", "benchmarks") for path in (ROOT / part).rglob("*.py")):
        *folder, _ = file.relative_to(ROOT).parts
        room = ["selattn", *folder[1:]] if folder[:1] == ["tests"] else folder
        for name in imported(file):
            parts = name.split(".")
            private = next((i for i, part in enumerate(parts) if part.startswith("_") and part != "__version__"), None)
            if parts[0] != "selattn" or private is None:
                continue
            home = parts[:private] if ROOT.joinpath(*parts[:private]).is_dir() else parts[: private - 1]
            if room[: len(home)] != home:
                found.append(f"{file.relative_to(ROOT)}: {name}")
    assert found == []


def test_a_figure_of_a_record_loads_no_model():
    loaded = loaded_by("import selattn.views.plot, selattn.evaluation.traces")
    assert "matplotlib" in loaded
    assert not loaded & {"torch", "transformers", "selattn.models", "selattn.cache"}


def test_a_command_computes_nothing():
    """Options in, tables out: a command makes no tensor and no model class, reads no JSON, and defines no class."""
    allowed = {"_options.py": {"Formatter", "Parser"}}
    for file in (ROOT / "selattn" / "cli").glob("*.py"):
        tree = ast.parse(file.read_text())
        classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        assert classes == allowed.get(file.name, set()), file.name
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & {"json.loads", "json.load", "torch.zeros", "torch.randn", "torch.no_grad"}, file.name
        names = {name.rpartition(".")[0] for name in imported(file)}
        assert not names & {"numpy", "torch.nn", "matplotlib", "selattn.ops", "selattn.models.decoder"}, file.name


def test_public_functions_stay_functions_whatever_is_imported_first():
    """Every room is imported, then every public name is asked for: none has been replaced by a module."""
    rooms = sorted(f"selattn.{path.name}" for path in (ROOT / "selattn").iterdir() if (path / "__init__.py").is_file())
    code = f"""
import importlib, inspect, selattn
for room in {rooms!r}:
    importlib.import_module(room)
modules = [name for name in selattn.__all__ if inspect.ismodule(getattr(selattn, name))]
verbs = ("causal_attention convert evaluate eviction_order explore kept_positions load make_selective make_standard "
         "prune selective_attention trace train").split()
print(modules, [name for name in verbs if not inspect.isfunction(getattr(selattn, name))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['plot'] []"


def test_ops_need_torch_only():
    loaded = loaded_by("import selattn.ops")
    assert "torch" in loaded
    assert not loaded & {"transformers", "accelerate", "datasets", "matplotlib", "rich", "triton"}


def test_public_names_are_those_of_their_rooms():
    import selattn.cache
    import selattn.conversion
    import selattn.evaluation
    import selattn.models
    import selattn.ops
    import selattn.pruning
    import selattn.training

    homes = (selattn.ops, selattn.cache, selattn.models)
    homes += (selattn.evaluation, selattn.pruning, selattn.training, selattn.conversion)
    assert set(selattn.__all__) <= set(dir(selattn))
    for name in set(selattn.__all__) - {"__version__", "explore", "plot", "trace"}:  # tests/views has these
        home = next(home for home in homes if hasattr(home, name))
        assert getattr(selattn, name) is getattr(home, name)


def test_no_room_has_the_name_of_a_public_function():
    """As soon as anything imported such a package, it would take the function's place."""
    rooms = {path.stem for path in Path(selattn.__file__).parent.iterdir()}
    assert rooms.isdisjoint(selattn.__all__)


@pytest.mark.parametrize("room", ["evaluation", "pruning"])
def test_no_module_has_the_name_of_a_function_of_its_room(room):
    found = importlib.import_module(f"selattn.{room}")
    modules = {path.stem for path in Path(found.__file__).parent.glob("*.py")}
    assert modules.isdisjoint(found.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'selective_atention'"):
        _ = selattn.selective_atention
