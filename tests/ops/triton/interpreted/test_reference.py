"""The kernels are the reference: output, M, final F and every gradient, in named situations and at odd lengths."""

import pytest
import torch
from gpu_check import SITUATIONS, make

from selattn.ops import Sequences, causal_attention
from selattn.ops.backends.triton import Triton, configs, selfcheck
from selattn.ops.backends.triton.configs import Config, Tile
from tests.ops.cases import attend
from tests.ops.triton.interpreted.small import SMALL, size, wrong

QUICK = (
    "default",
    "everything",
    "padding in between",
    "separate form, masks of heads",
    "initial F, window",
)


@pytest.mark.parametrize("name", QUICK)
def test_equals_the_reference(name):
    assert wrong(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SITUATIONS if name not in QUICK])
def test_equals_the_reference_elsewhere(name):
    assert wrong(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SITUATIONS)
def test_half_precision(name, dtype):
    assert wrong(name, dtype) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_in_short(dtype):
    assert wrong("default", dtype) == []


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 32, 64])
@pytest.mark.parametrize("keys", [16, 32, 64])
def test_tiles_of_other_sizes(rows, keys):
    config = Config(
        rows, *(Tile(size, 4, 1, heads) for size, heads in zip([keys] * 7, [1, 1, 1, 1, 1, 4, 1], strict=True))
    )
    for name in ("sharp", "packed", "initial F, window"):
        assert wrong(name, config=config) == []


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
@pytest.mark.timeout(600)
def test_a_thousand_tokens():
    where = selfcheck.Size(1000, 16, torch.float32, torch.device("cpu"))
    assert selfcheck.judge(make("default", where), Triton()) == []


@pytest.mark.parametrize("features", [64, 100, 128])
def test_heads_of_real_sizes(features):
    """Of 100 features, the last 28 of a tile are padding."""
    where = selfcheck.Size(35, features, torch.float32, torch.device("cpu"))
    assert selfcheck.judge(make("default", where), Triton()) == []


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


def test_all_columns_may_die(monkeypatch):
    """So sharp that after a block nothing older lives but the first token, which nobody can mask."""
    monkeypatch.setattr(configs, "INTERPRETED", SMALL)
    q, k, v = make("sharp", size())[:3]
    k[:, :, 1:] = k[:, :, 1:].abs()
    given = {"enable_gqa": True, "tolerance": 1e-6, "wanted": ("memory", "living")}
    got, want = (attend(3 * q.abs(), k, v, backend=name, **given) for name in ("triton", "reference"))
    assert (got.living < 0.6).all()
    torch.testing.assert_close(got.output, want.output, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.memory, want.memory, rtol=1e-4, atol=1e-4)


def test_the_same_bits_each_time():
    request = make("two masks", size(n=20))
    leaves = [x.requires_grad_() for x in request[:3]]

    def once():
        output, aux, _ = Triton().attend(request)
        return [output, aux.memory, *torch.autograd.grad(output.sin().sum() + aux.memory.sin().sum(), leaves)]

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


@pytest.mark.parametrize("name", ["default", "everything", "initial F", "bias", "separate form", "standard"])
def test_a_batch_of_none(name):
    """An empty output, and empty gradients."""
    request = make(name, size(n=5))
    empty = {key: x[:0] for key, x in request._asdict().items() if isinstance(x, torch.Tensor) and x.shape[0] == 2}
    leaves = {key: x.requires_grad_() for key, x in empty.items() if key in selfcheck.DIFFERENTIABLE}
    output, aux, _ = Triton().attend(request._replace(**empty))
    assert output.shape == (0, selfcheck.HEADS, 5, request.value.shape[3])
    assert aux.memory is None or aux.memory.shape[0] == 0
    for key, x in zip(leaves, torch.autograd.grad(output.sum(), list(leaves.values())), strict=True):
        assert x.shape == leaves[key].shape


def test_padding_that_is_nan_reaches_nobody():
    """Output, M and gradients are as with zeros there, also where NaN comes back to it."""
    real = torch.arange(21)[None] >= torch.tensor([[6], [0]])
    found = []
    for value in (torch.nan, 0.0):
        torch.manual_seed(0)
        drawn = (torch.randn(2, 2, 21, 8).where(real[:, None, :, None], value) for _ in range(3))
        leaves = [x.requires_grad_() for x in drawn]
        got = attend(*leaves, sequences=Sequences.from_mask(real), backend="triton", wanted=("memory",))
        upstream = torch.ones_like(got.output).where(real[:, None, :, None], value)
        results, came = (got.output, got.memory), (upstream, torch.ones_like(got.memory))
        found.append([got.output, got.memory, *torch.autograd.grad(results, leaves, came)])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)
