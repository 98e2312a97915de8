"""The kernels are the reference: output, M, final F and every gradient, in named situations and at odd lengths."""

import pytest
import torch

from selattn.ops import Sequences, causal_attention, selective_attention
from selattn.ops.backends.triton import configs
from selattn.ops.backends.triton.configs import Config, Tile
from tests.ops.cases import attend
from tests.ops.triton.interpreted.situations import SITUATIONS, SMALL, compare, situation

QUICK = (
    "default",
    "sharp",
    "padding in between",
    "evicted by each head",
    "two masks",
    "separate form",
    "initial F, window",
)


@pytest.mark.parametrize("name", QUICK)
def test_equals_the_reference(name):
    compare(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SITUATIONS if name not in QUICK])
def test_equals_the_reference_elsewhere(name):
    compare(name)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SITUATIONS)
def test_half_precision(name, dtype):
    """The reference keeps its weights and its output in fp32 for the backward pass: no flash kernel is as good."""
    compare(name, dtype, factor=4.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_in_short(dtype):
    compare("default", dtype, factor=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 32, 64])
@pytest.mark.parametrize("keys", [16, 32, 64])
def test_tiles_of_other_sizes(rows, keys):
    config = Config(
        rows, *(Tile(size, 4, 1, heads) for size, heads in zip([keys] * 6, [1, 1, 1, 1, 1, 4], strict=True))
    )
    for name in ("sharp", "packed", "initial F, window"):
        compare(name, config=config)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
def test_lengths(n):
    """At the borders of blocks; forward and backward."""
    q, k, v = (torch.randn(1, 2, n, 8).requires_grad_() for _ in range(3))
    found = []
    for backend in ("triton", "reference"):
        got = attend(q, k, v, backend=backend, wanted=("memory", "living"))
        loss = got.output.square().sum() + got.memory.sin().sum()
        found.append([got.output, got.memory, *torch.autograd.grad(loss, (q, k, v))])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_a_thousand_tokens():
    q, k, v = (torch.randn(1, 1, 1000, 16) for _ in range(3))
    got = selective_attention(4 * q, k, v, backend="triton")
    want = selective_attention(4 * q, k, v, backend="reference")
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("options", [{"window": 5}, {"softcap": 2.0}, {"sequences": "packed"}], ids=str)
def test_standard_attention(options):
    """Without F: one kernel forward, three backward."""
    q, k, v = (torch.randn(2, h, 21, 8).requires_grad_() for h in (4, 2, 2))
    if options.get("sequences") == "packed":
        options = {"sequences": Sequences.from_documents(torch.arange(21)[None] // torch.tensor([[9], [15]]))}
    found = []
    for backend in ("triton", "reference"):
        y = causal_attention(q, k, v, enable_gqa=True, backend=backend, **options)
        found.append([y, *torch.autograd.grad(y.sin().sum(), (q, k, v))])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_all_columns_may_die():
    """So sharp that after a block nothing older lives but the first token, which nobody can mask."""
    x, options = situation("sharp")
    q, k, v = (x[name].float() for name in ("query", "key", "value"))
    k[:, :, 1:] = k[:, :, 1:].abs()
    q = 3 * q.abs()
    options = options | {"wanted": ("memory", "living"), "tolerance": 1e-6}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configs, "INTERPRETED", SMALL)
        got = attend(q, k, v, backend="triton", **options)
    want = attend(q, k, v, backend="reference", **options)
    assert (got.living < 0.6).all()
    torch.testing.assert_close(got.output, want.output, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.memory, want.memory, rtol=1e-4, atol=1e-4)


def test_the_same_bits_each_time():
    x, options = situation("two masks")
    leaves = {name: t.float().requires_grad_() for name, t in x.items()}

    def once():
        got = attend(**leaves, **options, backend="triton")
        loss = got.output.sin().sum() + got.memory.sin().sum()
        return [got.output, got.memory, *torch.autograd.grad(loss, list(leaves.values()))]

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))
