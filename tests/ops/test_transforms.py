"""Under autocast, checkpointed, run again, and under torch.func: the same attention, or one clear line."""

import pytest
import torch
from torch.nn import functional as nnf
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from selattn.errors import SelattnError
from selattn.ops import causal_attention
from tests.ops.cases import BACKENDS, attend, only, returns

B, N = 2, 37


def leaves():
    return [torch.randn(B, h, N, d, dtype=torch.float64, requires_grad=True) for h, d in ((4, 6), (2, 6), (2, 3))]


@pytest.mark.parametrize(
    ("backend", "low"),
    [(b, d) for b in BACKENDS for d in (torch.bfloat16, torch.float16) if (b, d) != ("cpu", torch.float16)],
    ids=str,
)
def test_autocast_is_that_of_scaled_dot_product_attention(low, backend):
    """Inputs of mixed dtypes, as rotary embeddings leave them; F stays in fp32; gradients keep the inputs' dtypes."""
    q, k, v = (x.detach().float() for x in leaves())
    inputs = [q.requires_grad_(), k.requires_grad_(), v.to(low).requires_grad_()]
    with torch.autocast("cpu", low):
        theirs = nnf.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
        standard = causal_attention(*inputs, enable_gqa=True, backend=backend)
        got = attend(*inputs, enable_gqa=True, **returns(backend, "f", "memory"), backend=backend)
    assert theirs.dtype == standard.dtype == got.output.dtype == low
    assert {x.dtype for x in got[1:3] if x is not None} == {torch.float32}
    assert_close(standard, theirs, rtol=0.02, atol=0.02)
    want = attend(*(x.to(low) for x in inputs), enable_gqa=True, **returns(backend, "f", "memory"), backend=backend)
    for x, y in zip(got, want, strict=True):
        assert x is y is None or torch.equal(x, y)
    gradients = torch.autograd.grad(sum(x.float().sum() for x in got if x is not None), inputs)
    assert [g.dtype for g in gradients] == [torch.float32, torch.float32, low]


@pytest.mark.parametrize(
    ("backend", "dropout_p"), [*((b, 0.0) for b in BACKENDS), *((b, 0.3) for b in only(BACKENDS, "cpu"))]
)
def test_checkpointed_is_plain(dropout_p, backend):
    """Non-reentrant; with dropout the recomputed forward pass drops the same weights."""
    inputs = leaves()

    def block(q, k, v):
        got = attend(q, k, v, dropout_p=dropout_p, enable_gqa=True, backend=backend, wanted=("memory",))
        return got.output.sin().sum() + got.memory.sum()

    found = []
    for call in (block, lambda *x: checkpoint(block, *x, use_reentrant=False)):
        torch.manual_seed(1)
        found.append(torch.autograd.grad(call(*inputs), inputs))
    assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_again_is_the_same_to_the_last_bit(backend):
    inputs = [torch.randn(2, 4, 300, 16, requires_grad=True) for _ in range(3)]

    def once():
        got = attend(*inputs, **returns(backend, "f", "memory"), backend=backend)
        got = [x for x in got if x is not None]
        return (*got, *torch.autograd.grad(sum(x.sin().sum() for x in got), inputs))

    for first, second in zip(once(), once(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:.torch.jit")  # by torch's forward mode itself
@pytest.mark.parametrize("way", [torch.func.vjp, torch.func.jvp])
def test_torch_func_takes_the_reference(way):
    """Backends with kernels of their own are refused by name, and "auto" takes the reference: never a silent 0."""
    q, k, v = (x.detach() for x in leaves())

    def derivative(backend):
        def loss(q):
            got = attend(q, k, v, enable_gqa=True, backend=backend, wanted=("memory",))
            return got.output.sin().sum() + got.memory.sin().sum()

        one = torch.ones(())
        return way(loss, q)[1](one)[0].sum() if way is torch.func.vjp else way(loss, (q,), (torch.ones_like(q),))[1]

    assert_close(derivative("auto"), derivative("reference"), rtol=1e-9, atol=1e-9)
    for backend in ("chunked", "cpu"):
        with pytest.raises(SelattnError, match=rf"'{backend}' cannot do this: .*no torch.func"):
            derivative(backend)
