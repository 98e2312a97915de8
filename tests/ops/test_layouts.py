"""However the numbers lie in memory, and whatever the scale's sign: every backend gives what the reference gives.

The reference is plain PyTorch, and is itself given the same numbers in dense tensors.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selattn.ops import Sequences, causal_attention, selective_attention
from tests.ops.cases import BACKENDS, assert_same, examples

# Each makes of a tensor [B, heads, length, size] one with other strides; some repeat numbers.
LAYOUTS = {
    "dense": lambda x: x,
    "as a model has them": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "rows in columns": lambda x: x.mT.contiguous().mT,  # keys stored as [D, N]
    "all reversed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "batch innermost": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "every second": lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
    "part of wide rows": lambda x: torch.cat([x + 1, x, x + 1], -1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "part of more rows": lambda x: torch.cat([x + 1, x], 2)[:, :, x.shape[2] :],
    "not at the beginning": lambda x: torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape),
    "one for all rows of the batch": lambda x: x[:1].expand(x.shape),
    "one for all heads": lambda x: x[:, :1].expand(x.shape),
    "one for all tokens": lambda x: x[:, :, :1].expand(x.shape),
    "one for all features": lambda x: x[..., :1].expand(x.shape),
    "one number": lambda x: x[:1, :1, :1, :1].expand(x.shape),
}
FORMS = {
    "selective": (selective_attention, {}),
    "selective, padded": (selective_attention, {"sequences": True}),
    "standard": (causal_attention, {}),
    "standard, padded": (causal_attention, {"sequences": True}),
    "window": (causal_attention, {"window": 4}),
}


@st.composite
def calls(draw):
    """A function, its options, inputs and the upstream gradient, each in a layout of its own."""
    chance = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch, groups, shared = (draw(st.integers(1, 2)) for _ in range(3))
    length, size, value_size = draw(st.sampled_from((1, 2, 7, 40, 100))), *(draw(st.integers(1, 9)) for _ in range(2))
    heads, layout = groups * shared, st.sampled_from(list(LAYOUTS))

    def drawn(*shape):
        return LAYOUTS[draw(layout)](torch.randn(shape, generator=chance, dtype=torch.float64))

    inputs = {
        "query": drawn(batch, heads, length, size),
        "key": drawn(batch, groups, length, size),
        "value": drawn(batch, groups, length, value_size),
    }
    upstream = drawn(batch, heads, length, value_size)
    function, options = FORMS[draw(st.sampled_from(list(FORMS)))]
    options = {"scale": draw(st.sampled_from((None, 0.0, -0.0, -0.4, -3.0, 1.0))), "enable_gqa": True} | options
    if "sequences" in options:
        mask = torch.rand(batch, length, generator=chance) < 0.7
        # As a caller may have it: expanded from one row, or every second of a longer one.
        mask = draw(
            st.sampled_from((mask, mask[:1].expand(batch, length), torch.stack([mask, ~mask], -1).flatten(1)[:, ::2]))
        )
        options["sequences"] = Sequences.from_mask(mask)
    if draw(st.booleans()):
        until = torch.randint(1, length + 5, (1, length), generator=chance).expand(batch, length)
        options["visible_until"] = until
    return function, inputs, options, upstream


def results(function, inputs, options, upstream, backend):
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}  # the same memory, the same strides
    output = function(**leaves, **options, backend=backend)
    gradients = torch.autograd.grad(output, list(leaves.values()), upstream)
    return {"output": output} | {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}


@pytest.mark.parametrize("backend", BACKENDS)
@examples(4)
@given(call=calls())
def test_every_layout_and_sign(backend, call):
    function, inputs, options, upstream = call
    got = results(function, inputs, options, upstream, backend)
    dense = {name: x.clone(memory_format=torch.contiguous_format) for name, x in inputs.items()}
    upstream = upstream.clone(memory_format=torch.contiguous_format)
    assert_same(got, results(function, dense, options, upstream, "reference"))
    for name, x in inputs.items():
        assert torch.equal(x, dense[name]), "an input was written to"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [selective_attention, causal_attention])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_keys_stored_by_feature(dtype, function, backend):
    """[D, N] in memory, as a cache may hold them; in the precisions that have vector code of their own."""
    q, k, v = (torch.randn(2, 3, 130, 16).to(dtype) for _ in range(3))
    packed = Sequences.from_documents((torch.arange(130) // 50)[None])
    got = function(q, k.mT.contiguous().mT, v.mT.contiguous().mT, sequences=packed, backend=backend)
    want = function(q, k, v, sequences=packed, backend=backend)
    torch.testing.assert_close(got, want, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("function", [selective_attention, causal_attention])
def test_a_bias_in_any_layout(function, backend):
    q, k, v = (torch.randn(2, 3, 20, 4, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(2, 3, 20, 20, dtype=torch.float64)
    for odd in (bias.mT.contiguous().mT, bias[:1, :1, :1].expand(bias.shape), bias[..., :1].expand(bias.shape)):
        odd = odd.detach().requires_grad_()
        dense = odd.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
        got, want = (function(q, k, v, x, backend=b) for x, b in ((odd, backend), (dense, "reference")))
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        (got,), (want,) = (torch.autograd.grad(y.sin().sum(), x) for y, x in ((got, odd), (want, dense)))
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
