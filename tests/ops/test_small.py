"""The smallest calls: a batch of nothing, one token; and tensors with shapes and no numbers."""

import pytest
import torch

from selattn.ops import Fixed, Selection, Sequences, causal_attention, selective_attention
from tests.ops.cases import BACKENDS, attend, only, returns

EVERYTHING = only(BACKENDS, "cpu")
H, G, N, D, DV = 4, 2, 5, 6, 3
FORMS = {
    "selective": (selective_attention, {}, BACKENDS),
    "standard": (causal_attention, {}, BACKENDS),
    "window": (causal_attention, {"window": 2}, BACKENDS),
    "pattern": (causal_attention, {"pattern": Fixed(2, 1)}, EVERYTHING),
    "two masks": (selective_attention, {"selection": Selection((0, 1))}, EVERYTHING),
    "dropout": (selective_attention, {"dropout_p": 0.5}, EVERYTHING),
    "soft cap": (selective_attention, {"softcap": 3.0}, BACKENDS),
    "strength": (selective_attention, {"strength": 0.5}, BACKENDS),
}
CASES = [(form, backend) for form, (_, _, able) in FORMS.items() for backend in able]


def inputs(batch, length=N, device="cpu"):
    shapes = ((H, length, D), (G, length, D), (G, length, DV))
    return [torch.randn(batch, *shape, device=device, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(("form", "backend"), CASES)
def test_a_batch_of_nothing(form, backend, limited):
    """An empty output of the right shape, and empty gradients."""
    function, options, _ = FORMS[form]
    if limited:
        mask, until = torch.ones(0, N, dtype=torch.bool), torch.ones(0, N, dtype=torch.int64)
        options = options | {"sequences": Sequences.from_mask(mask), "visible_until": until}
    leaves = inputs(0)
    output = function(*leaves, enable_gqa=True, **options, backend=backend)
    assert output.shape == (0, H, N, DV)
    gradients = torch.autograd.grad(output.sum(), leaves)
    assert [g.shape for g in gradients] == [x.shape for x in leaves]


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_results_of_a_batch_of_nothing(backend):
    leaves = inputs(0)
    with torch.no_grad():  # the compiled backend has no gradient beside an F to begin or end with
        got = attend(*leaves, enable_gqa=True, wanted=(*returns(backend)["wanted"], "living"), backend=backend)
        rest = selective_attention(
            leaves[0][:, :, 2:], *leaves[1:], enable_gqa=True, initial_f=got.final_f[..., :2], backend=backend
        )
    assert rest.shape == (0, H, N - 2, DV)
    shapes = {"f": (0, 1, N, N), "memory": (0, 1, N), "final_f": (0, 1, N), "living": (0,)}
    for name, shape in shapes.items():
        found = getattr(got, name)
        assert found is None or found.shape == shape
    assert got.final_f is not None
    assert got.memory is not None


META = [(form, backend) for form, backend in CASES if backend != "cpu"] + [(form, "auto") for form in FORMS]


@pytest.mark.parametrize(("form", "backend"), META)
def test_meta_tensors_have_the_shapes(form, backend):
    function, options, _ = FORMS[form]
    q, k, v = inputs(2, device="meta")
    sequences = Sequences.from_mask(torch.ones(2, N, dtype=torch.bool, device="meta"))
    for limits in ({}, {"sequences": sequences, "visible_until": torch.ones(2, N, dtype=torch.int64, device="meta")}):
        output = function(q, k, v, enable_gqa=True, **limits, **options, backend=backend)
        assert output.is_meta
        assert output.shape == (2, H, N, DV)
        assert output.dtype == q.dtype
        gradients = torch.autograd.grad(output.sum(), (q, k, v))
        assert [g.shape for g in gradients] == [x.shape for x in (q, k, v)]
