"""The baselines that the paper trains: standard attention, a local window, and Child et al.'s sparse patterns."""

from math import exp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as nnf
from torch.testing import assert_close

from selattn.errors import SelattnError
from selattn.ops import Fixed, Sequences, Strided, causal_attention
from selattn.ops.autograd import Arguments
from selattn.ops.rules import COMBINE, Rules
from tests.ops.cases import BACKENDS, PATTERNS, examples, only, rows, sequences
from tests.ops.literal import child_et_al, dot

H = 3
SPARSE = only(BACKENDS, "cpu")


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def loop(q, k, v, documents, shown):
    """Attention by its definition to the tokens of the own document that `shown(head, position)` names."""
    output = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for b, row in enumerate(documents):
        for i, mine in enumerate(row):
            places = [j for j, other in enumerate(row) if other == mine is not None]
            for h in range(H):
                seen = [places[p] for p in shown(h, places.index(i))] if places else []
                weights = [exp(dot(q[b, h, i].tolist(), k[b, h, j].tolist()) / q.shape[3] ** 0.5) for j in seen]
                for j, w in zip(seen, weights, strict=True):
                    output[b, h, i] += w / sum(weights) * v[b, h, j]
    return output


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 2, 63, 97, 129, 300])
def test_standard_attention_is_pytorchs(n, backend):
    leaves = q, k, v = [normal(2, heads, n, 8).requires_grad_() for heads in (4, 2, 2)]
    got = causal_attention(q, k, v, enable_gqa=True, backend=backend)
    want = nnf.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    upstream = torch.randn_like(want)
    assert_close(got, want, rtol=0, atol=1e-12)
    got, want = (torch.autograd.grad(x, leaves, upstream) for x in (got, want))
    assert_close(got, want, rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@examples(1)
@given(data=st.data(), window=st.integers(1, 9), n=st.sampled_from((1, 2, 7, 9)))
def test_window(backend, data, window, n):
    """The last `window` tokens of the own document, the own one included."""
    documents = data.draw(rows(2, n, ("full", "padded", "packed", "scattered", "empty")))
    q, k, v = normal(2, H, n, 3), normal(2, H, n, 3), normal(2, H, n, 2)
    got = causal_attention(q, k, v, window=window, sequences=sequences(documents), backend=backend)
    want = loop(q, k, v, documents, lambda _, i: range(max(0, i + 1 - window), i + 1))
    assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", SPARSE)
@examples(2)
@given(data=st.data(), pattern=PATTERNS, n=st.sampled_from((1, 2, 7, 11)))
def test_sparse_patterns_are_child_et_al(backend, data, pattern, n):
    """Positions are counted inside each document."""
    documents = data.draw(rows(2, n, ("full", "padded", "packed", "scattered", "empty")))
    q, k, v = normal(2, H, n, 3), normal(2, H, n, 3), normal(2, H, n, 2)
    got = causal_attention(q, k, v, pattern=pattern, sequences=sequences(documents), backend=backend)
    want = loop(q, k, v, documents, lambda h, i: sorted(child_et_al(pattern, h, H, i)))
    assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("combine", COMBINE)
def test_gradients_of_sparse_patterns(combine):
    leaves = [normal(2, 4, 70, 5).requires_grad_() for _ in range(3)]
    packed = Sequences.from_documents(torch.tensor([[0] * 50 + [1] * 20, [0] * 7 + [1] * 63]))
    upstream = normal(2, 4, 70, 5)
    for pattern in (Strided(6, combine), Fixed(8, 3, combine)):
        got, want = (
            torch.autograd.grad(
                causal_attention(*leaves, pattern=pattern, sequences=packed, backend=b), leaves, upstream
            )
            for b in ("chunked", "reference")
        )
        assert_close(got, want, rtol=0, atol=1e-11)


@given(pattern=st.none() | PATTERNS)
def test_patterns_survive_being_encoded(pattern):
    arguments, rules = Arguments(Rules), Rules(pattern=pattern, window=3, softcap=2.0)
    assert arguments.build(arguments.flatten(rules)) == rules


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Strided(0), "stride of a strided pattern must be at least 1, not 0"),
        (lambda: Fixed(0, 1), "stride of a fixed pattern must be at least 1, not 0"),
        (lambda: Fixed(4, 0), "summary of a fixed pattern must be 1 to its stride 4, not 0"),
        (lambda: Fixed(4, 5), "summary of a fixed pattern must be 1 to its stride 4, not 5"),
        (lambda: Strided(4, "both"), "combine must be one of merged, split, first, second, not 'both'"),
    ],
)
def test_impossible_patterns(make, said):
    with pytest.raises(SelattnError, match=said):
        make()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_pytorchs_own_kernel_is_the_reference(dtype):
    """Grouped heads and values of another size; every gradient."""
    leaves = [normal(2, heads, 33, size).to(dtype).requires_grad_() for heads, size in ((4, 5), (2, 5), (2, 3))]
    found = []
    for backend in ("sdpa", "reference"):
        output = causal_attention(*leaves, enable_gqa=True, scale=0.3, backend=backend)
        found.append((output, *torch.autograd.grad(output.sin().sum(), leaves)))
    near = 1e-12 if dtype == torch.float64 else 0.05
    assert_close(*found, rtol=near, atol=near)
