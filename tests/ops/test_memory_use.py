"""What `chunked` allocates, seen by a dispatch mode: every tensor that any PyTorch operation in it makes."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from selattn.ops import Selection, Sequences, selective_attention
from selattn.ops.backends import chunked
from selattn.ops.request import AuxRequest, Request
from selattn.ops.rules import Rules
from tests.ops.cases import attend

N = 2048


class Meter(TorchDispatchMode):
    """Counts operations, and the elements and bytes of the storages that they make."""

    def __init__(self):
        super().__init__()
        self.operations, self.largest, self.peak, self._live = 0, 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = {StorageWeakRef(x.untyped_storage()).cdata for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)}
        for x in tree_leaves(made):
            if torch.is_tensor(x):
                storage = x.untyped_storage()
                reference = StorageWeakRef(storage)
                if reference.cdata not in given:
                    self.largest = max(self.largest, storage.nbytes() // x.element_size())
                    self._live[reference.cdata] = (reference, storage.nbytes())
        self._live = {key: (ref, size) for key, (ref, size) in self._live.items() if not ref.expired()}
        self.operations += 1
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return made


def inputs(n, **options):
    return [torch.randn(1, 2, n, 16, **options) for _ in range(3)]


@contextmanager
def meters_inside():
    """The meters of all passes: a mode outside makes them nodes, into which it cannot look."""
    meters = []

    def inside(original):
        def call(*args, **kwargs):
            with Meter() as meter:
                meters.append(meter)
                return original(*args, **kwargs)

        return call

    passes = {name: inside(getattr(chunked.OPERATOR, name)) for name in ("run_forward", "run_backward")}
    with mock.patch.multiple(chunked.OPERATOR, **passes):
        yield meters


def metered(function):
    """The meters of a forward and a backward pass."""
    with meters_inside() as meters:
        got = function()
        got = [x for x in got if x is not None] if isinstance(got, tuple) else [got]
        sum(x.sum() for x in got).backward()
    return meters


OPTIONS = {
    "default": {},
    "memory and final F": {"wanted": ("memory", "final_f")},
    "two masks": {"selection": Selection((0, 1)), "wanted": ("memory",)},
    "window": {"window": 700},
    "soft cap": {"softcap": 5.0},
    "dropout": {"dropout_p": 0.1},
    "packed": {"sequences": Sequences.from_cu_seqlens(torch.tensor([0, 1500, N - 9]), N)},
    "evicted": {"visible_until": torch.arange(N)[None] + 900},
    "bias of keys": {"attn_mask": torch.zeros(1, 1, 1, N)},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_no_tensor_is_a_quarter_of_the_matrix(kind):
    q, k, v = inputs(N, requires_grad=True)
    forward, backward = metered(lambda: attend(q, k, v, backend="chunked", **OPTIONS[kind]))
    for meter in (forward, backward):
        assert meter.operations > 50  # it does look inside
        assert 2 * N * 32 <= meter.largest < N * N / 4  # and sees the strips


def test_the_meter_sees_the_whole_matrix_of_the_reference():
    q, k, v = inputs(256, requires_grad=True)
    with Meter() as meter:
        selective_attention(q, k, v, backend="reference").sum().backward()
    assert meter.largest == 2 * 256 * 256
    assert meter.peak > 3 * 2 * 256 * 256 * 4


def peak(n):
    q, k, v = inputs(n)
    request = Request(q, k, v, Rules(Selection(), scale=0.25), AuxRequest(memory=True))
    with Meter() as meter:
        result = chunked.forward(request)
        came = {"output": torch.ones_like(result.output), "memory": torch.ones_like(result.memory)}
        came |= {"f": None, "final_f": None}
        chunked.backward(request, result._asdict(), came, frozenset({"query", "key", "value"}))
    return meter.peak


def test_peak_grows_with_the_length_not_with_its_square():
    """Twice the length is at most 2.3 times the memory."""
    short, long = peak(4096), peak(8192)
    assert 1.5 * short <= long <= 2.3 * short
