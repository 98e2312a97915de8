"""Imports point one way between the folders, and what is slow to load is loaded late."""

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

    rooms = ("evaluation", "pruning", "report", "cli", "reproduce", "serve")
    names = [name for name in models.__all__ if name.startswith("Selective")]
    assert {"SelectiveConfig", "SelectiveForCausalLM", "SelectiveModel"} <= set(names)
    named = re.compile(rf"\b({'|'.join(names)}|SelectivePreTrainedModel|from_pretrained)\b")
    files = [file for room in rooms for file in (ROOT / "selattn" / room).rglob("*.py")]
    assert len(files) > 50
    found = [f"{file.relative_to(ROOT)}: {match[0]}" for file in files if (match := named.search(file.read_text()))]
    assert found == []


def loaded_by(statement):
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_selattn_is_light():
    assert not loaded_by("import selattn") & {"torch", "numpy", "transformers", "rich"}


def test_ops_need_torch_only():
    loaded = loaded_by("import selattn.ops")
    assert "torch" in loaded
    assert not loaded & {"transformers", "accelerate", "datasets", "matplotlib", "rich", "triton"}


def test_public_names_are_those_of_their_rooms():
    import selattn.cache
    import selattn.eviction
    import selattn.models
    import selattn.ops

    homes = (selattn.ops, selattn.eviction, selattn.cache, selattn.models)
    assert set(selattn.__all__) <= set(dir(selattn))
    for name in set(selattn.__all__) - {"__version__", "explore", "plot", "trace"}:  # tests/report has these
        home = next(home for home in homes if hasattr(home, name))
        assert getattr(selattn, name) is getattr(home, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'selective_atention'"):
        _ = selattn.selective_atention
