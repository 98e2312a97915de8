"""Sequences go where the layers are: to another device, and through whatever walks over trees of tensors."""

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from accelerate.utils import send_to_device
from torch.utils import _pytree

from selattn.errors import SelattnError
from selattn.ops import Sequences, selective_attention

START = torch.tensor([[3, 1, 1], [0, 0, 3]])


def test_to_another_device():
    got = Sequences(START).to("meta")
    assert isinstance(got, Sequences)
    assert got.start.is_meta
    assert got.start.shape == START.shape
    assert torch.equal(Sequences(START).to(torch.device("cpu")).start, START)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"sequences": x}, lambda x: (1, {"a": [x]})])
def test_accelerate_moves_them(wrap):
    (got,) = (x for x in _pytree.tree_leaves(send_to_device(wrap(Sequences(START)), "meta")) if torch.is_tensor(x))
    assert got.is_meta


def test_a_hook_of_accelerate_moves_them_to_the_module():
    class Layer(torch.nn.Module):
        def forward(self, x, sequences):
            return selective_attention(x, x, x, sequences=sequences)

    layer = add_hook_to_module(Layer(), AlignDevicesHook("meta"))
    got = layer(torch.randn(2, 2, 3, 4), sequences=Sequences(START))
    assert got.is_meta
    assert got.shape == (2, 2, 3, 4)


def test_they_are_a_tree_with_one_leaf():
    leaves, spec = _pytree.tree_flatten({"a": Sequences(START), "b": 2})
    assert len(leaves) == 2
    again = _pytree.tree_unflatten(leaves, spec)["a"]
    assert torch.equal(again.start, START)
    shifted = _pytree.tree_map_only(torch.Tensor, lambda x: x + 1, Sequences(START))
    assert torch.equal(shifted.start, START + 1)
    ((path, _),) = _pytree.tree_flatten_with_path(Sequences(START))[0]
    assert _pytree.keystr(path) == ".start"


def test_vmap_goes_over_them():
    """A batch of batches, each with sequences of its own."""
    x = torch.randn(3, 2, 2, 3, 4, dtype=torch.float64)
    starts = torch.stack([START, START.flip(0), torch.zeros_like(START)])

    def attend(x, sequences):
        return selective_attention(x, x, x, sequences=sequences, backend="reference")

    stacked = _pytree.tree_map(lambda _: starts, Sequences(START))
    got = torch.func.vmap(attend)(x, stacked)
    for i in range(3):
        torch.testing.assert_close(got[i], attend(x[i], Sequences(starts[i])), rtol=0, atol=1e-12)


def test_exported_with_sequences_as_an_input():
    class Layer(torch.nn.Module):
        def forward(self, x, sequences):
            return selective_attention(x, x, x, sequences=sequences)

    x, sequences = torch.randn(2, 2, 3, 4), Sequences(START)
    exported = torch.export.export(Layer(), (x, sequences)).module()
    torch.testing.assert_close(exported(x, sequences), Layer()(x, sequences))


@pytest.mark.parametrize(
    "start", [START.int(), START[0], START.float(), START.tolist(), {"start": START}, None], ids=str
)
def test_only_from_what_they_are(start):
    with pytest.raises(SelattnError, match=r"Sequences.start must be an int64 tensor \[batch, keys\], not .*from_mask"):
        Sequences(start)
