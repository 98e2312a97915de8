"""Kernels compile for cards that are not here: the interpreter does not show what the compiler refuses."""

import os

import gpu_compile
import pytest
import torch

from selattn.ops.backends.triton import configs
from selattn.utils import records
from tools.tables import ROOT

pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled there")


def compiled(name, card, dtype=torch.bfloat16, size=64):
    found = gpu_compile.compile_launches(lambda: {**gpu_compile.CALLS, **gpu_compile.RARER}[name](dtype, size), card)
    assert all(x.shared <= configs.card_of(card).shared for x in found)
    return {x.kernel: x for x in found}


def test_the_decode_step_compiles():
    assert compiled("decode step", 80)["step"].registers > 0


@pytest.mark.slow
@pytest.mark.parametrize("card", [80, 90])
def test_attention_compiles(card):
    found = compiled("attention", card)
    assert {*found} == {
        *("bounds", "select", "list_columns", "attend"),
        *("row_products", "d_forgetting", "d_selecting_keys", "d_selecting_queries", "d_keys", "d_queries"),
    }
    for kernel in ("bounds", "select", "list_columns", "attend"):
        assert found[kernel].spill_stores == found[kernel].spill_loads == 0, kernel


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eviction order", "decode step: everything", "bias", "everything"])
def test_rarer_calls_compile(name):
    assert compiled(name, 86)


def test_the_record_says_that_all_fit():
    """Of every card, dtype and size; and half precision needs no spills forward, for heads of 64."""
    record = records.read_record(ROOT / "results" / "gpu_compile.json")
    assert record["kernels"] == gpu_compile.sources(), (
        "the kernels have changed: run `python benchmarks/gpu_compile.py`"
    )
    found = record["targets"]
    assert {(x["target"], x["dtype"], x["size"]) for x in found} == {
        (target, dtype, size)
        for target in (80, 86, 90, 100)
        for dtype in ("bfloat16", "float16", "float32")
        for size in (64, 128)
    }
    assert all(x["fit"] == x["kernels"] > 0 for x in found)
    assert not any(x["spills_forward"] for x in found if x["dtype"] != "float32" and x["size"] == 64)
