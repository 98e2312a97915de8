"""Addresses are made in 64 bits: tensors of more than 2^31 elements, which are never allocated.

Calls on the meta device launch what they would launch on a GPU. Of each launch some programs run in the interpreter,
with loads that give zeros and stores that write nothing; what is looked at is where they would have read and written.
"""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch

from selattn.ops import Selection
from selattn.ops.backends.triton import attention, configs, prepare
from selattn.ops.backends.triton.prepare import instead
from selattn.ops.request import AuxRequest, Request
from selattn.ops.rules import Rules
from tests.ops.triton.interpreted.faults import changed

# Heads by tokens by features is more than 2^31 for one row of the batch, and so is blocks by keys of F.
B, H, N, D = 2, 40, 1 << 20, 64
APART = 1 << 52  # bytes between the places that tensors are given


class Place:
    """A tensor that is nowhere: as much of it as the interpreter asks for."""

    def __init__(self, tensor, number):
        self.dtype, self.number = tensor.dtype, number
        self.size = tensor.numel() * tensor.element_size()

    def data_ptr(self):
        return self.number * APART


@contextmanager
def watched(touched):
    """Within it loads and stores only tell their addresses."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder

    def tell(pointers, mask):
        at = np.broadcast_to(pointers.data, np.broadcast_shapes(pointers.data.shape, mask.data.shape))
        touched.append(at[np.broadcast_to(mask.data, at.shape)])

    def load(self, pointers, mask, other, *rest):
        tell(pointers, mask)
        kind = interpreter._get_np_dtype(pointers.get_element_ty())
        return interpreter.TensorHandle(np.zeros(pointers.data.shape, kind), pointers.get_element_ty())

    def store(self, pointers, value, mask, *rest):
        tell(pointers, mask)

    with mock.patch.multiple(builder, create_masked_load=load, create_masked_store=store):
        yield


def run_corner(kernel, grid, arguments, options, found):
    """The last program of a launch; where it reads and writes, checked against the tensors it was given."""
    from triton.runtime import interpreter

    places = []

    def placed(x):
        if isinstance(x, torch.Tensor):
            places.append(Place(x, len(places) + 1))
            return places[-1]
        return type(x)(*map(placed, x)) if isinstance(x, tuple) and hasattr(x, "_fields") else x

    how = [i for i, x in enumerate(arguments) if type(x).__name__ == "How"]
    given = [x if i in how else placed(x) for i, x in enumerate(arguments)]
    executor = interpreter.GridExecutor(kernel.rewrite(), kernel.arg_names, grid)
    touched, scope = [], interpreter._patch_lang(executor.fn)
    try:
        names = [*kernel.arg_names[: len(given)]]
        values = dict(zip(names, given, strict=True))
        values |= {name: x for name, x in options.items() if name in kernel.arg_names}
        ready = {k: x if k in executor.constexprs else interpreter._implicit_cvt(x) for k, x in values.items()}
        wide = (*grid, 1, 1)[:3]
        interpreter.interpreter_builder.set_grid_dim(*wide)
        interpreter.interpreter_builder.set_grid_idx(0, wide[1] - 1, wide[2] - 1)
        with watched(touched):
            executor.fn(**ready)
    finally:
        scope.restore()
    for at in touched:
        for number in np.unique(at // APART):
            place = next((x for x in places if x.number == number), None)
            assert place is not None, f"{kernel.fn.__name__}: an address that belongs to no tensor"
            offset = at[at // APART == number] - np.uint64(place.data_ptr())
            assert offset.max() < place.size, f"{kernel.fn.__name__}: past the end"
            found[kernel.fn.__name__] = max(found.get(kernel.fn.__name__, 0), int(offset.max()))


def reach(kernel):
    """The largest offset in bytes of the last program of that kernel; queries have more than 2^31 elements."""
    x, found = torch.empty(B, H, N, D, dtype=torch.float16, device="meta"), {}
    # With a window, a program has a few keys only.
    request = Request(x, x, x, Rules(Selection(), window=16), AuxRequest(memory=True))

    def run(each, grid, arguments, options):
        if each.fn.__name__ == kernel and kernel not in found:  # of several strips of rows, the last ones
            run_corner(each, grid, arguments, options, found)

    config = configs.Config(16, *[configs.Tile(16, 4, 1)] * 7)
    with mock.patch.object(prepare, "choose", return_value=config), instead(run):
        result = attention.forward(request)
        if kernel not in FORWARD:
            saved = {name: getattr(result, name) for name in ("output", "lse", "block_f", "dead")}
            came = {"output": torch.empty_like(result.output), "memory": None, "final_f": None}
            attention.backward(request, saved, came, frozenset({"query", "key", "value"}))
    return found[kernel]


FORWARD = ("bounds", "select", "attend")
LAST_HEAD = (B * H - 1) * N * D * 2  # bytes before the last head of the last row of the batch


@pytest.mark.parametrize(
    "kernel",
    ["attend", "row_products", "bounds", *(pytest.param(x, marks=pytest.mark.slow) for x in ("d_keys", "d_queries"))],
)
def test_far_away(kernel):
    """The last head's rows are read, or written, where they are, and nothing outside of a tensor."""
    assert reach(kernel) >= LAST_HEAD > 1 << 32


@pytest.mark.slow
def test_f_at_block_starts_is_far_away():
    """Blocks by keys of F: the last row of the batch begins past 2^32 bytes."""
    assert reach("select") > 1 << 32


def test_addresses_in_32_bits_do_not_get_there(tmp_path):
    right = "base = x.data + b.to(tl.int64) * x.batch + h.to(tl.int64)"
    with changed(tmp_path / "kernels", "common.py", right, right.replace("h.to(tl.int64)", "h")):
        assert reach("bounds") < LAST_HEAD
