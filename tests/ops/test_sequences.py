"""Padding and packing: a sequence gives the same whatever stands around it."""

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.errors import SelattnError
from selattn.ops import Sequences, selective_attention
from tests.ops.cases import (
    BACKENDS,
    SHORT,
    STRIPS,
    Case,
    assert_same,
    attend,
    examples,
    returns,
    rows,
    selections,
    sequences,
)

H = 2


@st.composite
def batches(draw, kinds, backend):
    """A case with sequences of these kinds (see `rows`) that asks for everything that the backend differentiates."""
    batch, length = draw(st.integers(1, 3)), draw(st.sampled_from((*SHORT, 40, 70, *[97, 200] * (backend == "cpu"))))
    seed, groups = draw(st.integers(0, 2**31)), draw(st.sampled_from((1, H)))
    chance = torch.Generator().manual_seed(seed)
    shapes = {"query": (H, 3), "key": (groups, 3), "value": (groups, 4)}
    inputs = {
        name: torch.randn(batch, heads, length, size, generator=chance, dtype=torch.float64)
        for name, (heads, size) in shapes.items()
    }
    documents = draw(rows(batch, length, kinds))
    options = {"selection": draw(selections(H)), "sequences": sequences(documents)}
    options |= {"enable_gqa": True, **(returns(backend, "memory") if backend == "cpu" else returns(backend))}
    options["window"] = draw(st.none() | st.integers(1, length))
    return Case(inputs, options, documents, seed, draw(st.sampled_from(STRIPS)))


def part(name, x, row, at):
    """The tokens `at` of one row: of a matrix their rows and columns, of all else their places."""
    x = x[row : row + 1]
    if name == "f":
        return x[..., at, :][..., at]
    return x[..., at] if name in ("memory", "final_f") else x[..., at, :]


def assert_alone_is_the_same(case, backend):
    shapes = {name: x.shape for name, x in case.result(backend)._asdict().items() if x is not None}
    real = case.options["sequences"].real
    upstream = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    tokens = [(b, d) for b, row in enumerate(case.documents) for d in sorted({*row} - {None})]
    places = {(b, d): [j for j, other in enumerate(case.documents[b]) if other == d] for b, d in tokens}
    if "f" in shapes:
        upstream["f"].zero_()
        for (b, _), at in places.items():  # F between two documents is no result: only the diagonal blocks count
            block = torch.tensor(at)
            numbers = torch.randn(shapes["f"][1], len(at), len(at), dtype=torch.float64)
            upstream["f"][b, :, block[:, None], block] = numbers
    whole = case.run(backend, upstream)
    assert all(x.isfinite().all() for x in whole.values())
    for name in ("output", "d query", "d key", "d value"):
        assert (whole[name].transpose(1, 2)[~real] == 0).all()
    assert (whole["memory"].transpose(1, 2)[~real] == 0).all()
    for (b, _), at in places.items():
        inputs = {name: part(name, x, b, at) for name, x in case.inputs.items()}
        alone = Case(inputs, case.options | {"sequences": None}, None, 0)
        want = alone.run(backend, {name: part(name, x, b, at) for name, x in upstream.items()})
        assert_same({name: part(name, x, b, at) for name, x in whole.items()}, want)


@pytest.mark.parametrize("kinds", [("full", "padded", "empty"), ("packed",), ("scattered",)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@examples(2)
@given(data=st.data())
def test_each_sequence_is_as_if_it_were_alone(backend, kinds, data):
    """Padded rows, packed rows, and packed rows with padding in between."""
    assert_alone_is_the_same(data.draw(batches(kinds, backend)), backend)


@examples(2)
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5), slack=st.integers(0, 3))
def test_every_way_to_say_packed_is_the_same(lengths, slack):
    """Documents of these lengths, then `slack` tokens of padding."""
    total = sum(lengths) + slack
    starts = [sum(lengths[:d]) for d, n in enumerate(lengths) for _ in range(n)] + [total] * slack
    ids = torch.tensor([[d for d, n in enumerate(lengths) for _ in range(n)] + [99] * slack], dtype=torch.int64)
    positions = torch.tensor([[p for n in lengths for p in range(n)] + [0] * slack], dtype=torch.int64)
    cu = torch.tensor([0, *lengths]).cumsum(0)
    mask = ids != 99
    for got in (
        Sequences.from_documents(ids, mask),
        Sequences.from_cu_seqlens(cu.to(torch.int32), total),
        Sequences.from_position_ids(positions, mask),
    ):
        assert got.start.tolist() == [starts]
        assert got.positions.tolist() == positions.tolist()
        assert got.real.tolist() == mask.tolist()
        assert got.first.tolist() == ((positions == 0) & mask).tolist()


def test_a_document_that_begins_in_its_middle():
    """Cut from a longer one, its positions do not begin with 0."""
    positions = torch.tensor([[3, 4, 5, 2, 3], [0, 1, 7, 8, 9]])
    assert Sequences.from_position_ids(positions).start.tolist() == [[0, 0, 0, 3, 3], [0, 0, 2, 2, 2]]


def test_what_padding_holds_as_position_does_not_matter():
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    want = [[5, 5, 2, 2, 2], [5, 1, 1, 5, 5]]
    assert Sequences.from_mask(mask).start.tolist() == want
    for pad in (-1, 0, 1, 7):
        positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, pad)
        assert Sequences.from_position_ids(positions, mask).start.tolist() == want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [1, 3])
def test_bool_mask_over_keys_is_a_padding_mask(batch, backend):
    q, k, v = (torch.randn(3, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0], [1] * 6])[:batch].bool()
    want = selective_attention(q, k, v, sequences=Sequences.from_mask(mask.expand(3, 6)), backend=backend)
    got = selective_attention(q, k, v, mask[:, None, None], backend=backend)
    assert_close(got, want, rtol=0, atol=0)
    if backend == "cpu":  # it takes no mask of pairs
        return
    # A mask over keys alone would leave the pads as queries, and protect column 0.
    as_pairs = selective_attention(q, k, v, mask[:, None, None].expand(-1, -1, 6, -1), backend=backend)
    assert (as_pairs - want).abs().max() > 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_of_one_row_serve_every_row(backend):
    q, k, v = (torch.randn(3, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    one = Sequences.from_cu_seqlens(torch.tensor([0, 2, 5]), 6)
    each = Sequences(one.start.expand(3, 6))
    got, want = (attend(q, k, v, sequences=s, **returns(backend), backend=backend) for s in (one, each))
    for x, y in zip(got, want, strict=True):
        assert x is y is None or torch.equal(x, y)
    assert (want.output[:, :, 5] == 0).all()


START = torch.tensor([[3, 1, 1], [0, 0, 3]])


class Layer(torch.nn.Module):
    def forward(self, x, sequences):
        return selective_attention(x, x, x, sequences=sequences)


def test_a_hook_of_accelerate_moves_them_to_the_module():
    layer = add_hook_to_module(Layer(), AlignDevicesHook("meta"))
    got = layer(torch.randn(2, 2, 3, 4), sequences=Sequences(START))
    assert got.is_meta
    assert got.shape == (2, 2, 3, 4)


def test_exported_with_sequences_as_an_input():
    x, sequences = torch.randn(2, 2, 3, 4), Sequences(START)
    exported = torch.export.export(Layer(), (x, sequences)).module()
    assert_close(exported(x, sequences), Layer()(x, sequences))


@pytest.mark.parametrize("start", [START.int(), START[0], START.tolist(), None], ids=str)
def test_only_from_what_they_are(start):
    with pytest.raises(SelattnError, match=r"Sequences.start must be an int64 tensor \[batch, keys\], not .*from_mask"):
        Sequences(start)
