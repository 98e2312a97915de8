"""Low precision: no worse than twice a plain run of the pseudo-code in that precision, both measured against fp64."""

import pytest
import torch

from selattn.ops import causal_attention, selective_attention
from tests.ops.cases import BACKENDS, attend, only, returns
from tests.ops.literal import pseudo_code

LOW = [torch.bfloat16, torch.float16, torch.float32]
# The compiled backend has no fp16.
DTYPES = [(b, d) for b in BACKENDS for d in (*LOW, torch.float64) if (b, d) != ("cpu", torch.float16)]


def results(function, inputs, upstream):
    """The output and the gradients of q, k and v, in fp64."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    assert output.dtype == inputs[0].dtype
    gradients = torch.autograd.grad(output, leaves, upstream.to(output.dtype))
    return [x.detach().double() for x in (output, *gradients)]


def plain(q, k, v):
    return pseudo_code(q, k, v, f_dtype=torch.promote_types(q.dtype, torch.float32))[0]


@pytest.mark.parametrize("sharpness", [1, 4])
@pytest.mark.parametrize(("backend", "dtype"), [(b, d) for b, d in DTYPES if d in LOW], ids=str)
def test_error_is_at_most_twice_that_of_a_plain_run(backend, dtype, sharpness):
    shape = (4, 3, 129, 32)  # more than one block of 96 queries
    q, k, v, upstream = ((torch.randn(shape) * s).to(dtype) for s in (sharpness, 1, 1, 1))
    truth = results(plain, [x.double() for x in (q, k, v)], upstream)
    want = results(plain, (q, k, v), upstream)
    got = results(lambda *x: selective_attention(*x, backend=backend), (q, k, v), upstream)
    for name, g, w, t in zip(("output", "dq", "dk", "dv"), got, want, truth, strict=True):
        assert (w - t).norm() > 0
        assert (g - t).norm() <= 2 * (w - t).norm(), name
        assert (g - t).abs().max() <= 2 * (w - t).abs().max(), name


@pytest.mark.parametrize(("backend", "dtype"), [(b, d) for b, d in DTYPES if d in LOW], ids=str)
def test_a_large_f_is_summed_in_fp32(backend, dtype):
    """512 rows that all mask: F goes to hundreds, where the numbers of bf16 are 1 or 2 apart."""
    q = torch.rand(1, 2, 512, 16).to(dtype)
    got = attend(q, q, q, **returns(backend), backend=backend)
    assert {x.dtype for x in got[1:4] if x is not None} == {torch.float32}
    truth = pseudo_code(*[q.double()] * 3)[1]
    assert truth.max() > 400
    if backend == "cpu":  # the final F is F without the last row's selection
        assert (got.final_f[:, 0, :-1] >= truth[:, -1, :-1] - 1e-3).all()
        final_f = attend(*[q[:, :, :-1]] * 3, backend=backend, wanted=("final_f",)).final_f
        assert (final_f[:, 0] - truth[:, -1, :-1]).abs().max() < 1e-3
    else:
        assert (got.f[:, 0] - truth).abs().max() < 1e-3
    assert got.output.isfinite().all()
    in_low = pseudo_code(q, q, q)[1]
    assert dtype == torch.float32 or (in_low - truth).abs().max() > 0.05


@pytest.mark.parametrize(("backend", "dtype"), DTYPES, ids=str)
def test_dtypes_of_results_and_gradients(dtype, backend):
    leaves = [torch.randn(1, 2, 9, 4, dtype=dtype, requires_grad=True) for _ in range(3)]
    exact = torch.promote_types(dtype, torch.float32)
    asked = {"wanted": ("memory",)} if backend == "cpu" else returns(backend)  # no gradients beside a final F
    got = attend(*leaves, **asked, backend=backend)
    assert got.output.dtype == dtype
    assert {x.dtype for x in got[1:4] if x is not None} == {exact}
    loss = got.output.float().sum() + sum(x.sum() for x in got[1:3] if x is not None)
    assert {g.dtype for g in torch.autograd.grad(loss, leaves)} == {dtype}


@pytest.mark.parametrize("backend", only(BACKENDS, "cpu"))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bias_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_a_bias_of_any_floating_dtype(bias_dtype, dtype, backend):
    """Its gradient has its own dtype."""
    x = torch.randn(1, 2, 9, 4).to(dtype)
    bias = torch.randn(9, 9).to(bias_dtype).requires_grad_()
    for function in (selective_attention, causal_attention):
        got = function(x, x, x, attn_mask=bias, backend=backend)
        want = function(*[x.double()] * 3, attn_mask=bias.double(), backend="reference")
        assert got.dtype == dtype
        assert (got - want).abs().max() < 20 * torch.finfo(dtype).eps
        (gradient,) = torch.autograd.grad(got.sum(), bias)
        assert gradient.dtype == bias_dtype
        assert gradient.isfinite().all()
