"""Imports point one way between the folders, and what is slow to load is loaded late."""

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
