"""Which backend runs: the one asked for, or the one that the written rule of "auto" names."""

from unittest import mock

import pytest
import torch
from hypothesis import given

from selattn.errors import SelattnError
from selattn.ops import backends, causal_attention, dispatch, selective_attention
from selattn.ops.request import Attention
from tests.ops.cases import BACKENDS, SHORT, cases, examples

X = torch.randn(1, 2, 4, 3)


def test_backends_are_listed_with_why_not():
    assert tuple(backends()) == BACKENDS
    assert set(backends().values()) == {None}
    with mock.patch.object(dispatch.BACKENDS["chunked"], "unavailable", return_value="no strips today"):
        assert backends()["chunked"] == "no strips today"
        with pytest.raises(
            SelattnError, match="'chunked' cannot do this: no strips today; use reference or sdpa, or auto"
        ):
            selective_attention(X, X, X, backend="chunked")


@pytest.mark.parametrize("function", [selective_attention, causal_attention])
@pytest.mark.parametrize("name", BACKENDS)
def test_the_one_asked_for_runs(name, function):
    ran = []

    def spy(other):
        return mock.Mock(
            unavailable=lambda: None, refusal=lambda _: None, attend=lambda r: ran.append(other) or Attention(r)
        )

    with mock.patch.dict(dispatch.BACKENDS, {other: spy(other) for other in BACKENDS}):
        function(X, X, X, backend=name)
    assert ran == [name]


def test_auto_takes_pytorchs_kernel_where_there_is_nothing_but_causality():
    with mock.patch.object(dispatch.BACKENDS["sdpa"], "attend", side_effect=AssertionError("sdpa ran")):
        with pytest.raises(AssertionError, match="sdpa ran"):
            causal_attention(X, X, X)
        causal_attention(X, X, X, window=2)
        causal_attention(X, X, X, softcap=2.0)
        causal_attention(X[:, :, 1:], X, X)


def test_auto_is_chunked_but_for_the_weights():
    with mock.patch.object(dispatch.BACKENDS["chunked"], "attend", side_effect=AssertionError("chunked ran")):
        got = selective_attention(X, X, X, return_weights=True)
        with pytest.raises(AssertionError, match="chunked ran"):
            selective_attention(X, X, X)
    assert got.weights.shape == (1, 2, 4, 4)


@examples(2)
@given(case=cases(SHORT))
def test_auto_never_picks_one_that_refuses(case):
    for request in (case.request(), case.request()._replace(return_weights=True)):
        assert dispatch.BACKENDS[dispatch.choose(request)].refusal(request) is None


@examples(2)
@given(case=cases(SHORT))
def test_backends_refuse_nothing_else(case):
    """The reference does everything; `sdpa` has no soft cap; only the weights are too much for `chunked`."""
    request = case.request()
    refused = {name for name, module in dispatch.BACKENDS.items() if module.refusal(request)}
    assert refused == ({"sdpa"} if request.softcap else set())
    asked = request._replace(return_weights=True)
    assert {name for name, module in dispatch.BACKENDS.items() if module.refusal(asked)} == {"sdpa", "chunked"}


def test_only_what_was_asked_for_comes_back():
    assert isinstance(selective_attention(X, X, X), torch.Tensor)
    assert isinstance(causal_attention(X, X, X), torch.Tensor)
    for name in ("f", "memory", "state", "weights"):
        for backend in ("auto", "reference"):
            got = selective_attention(X, X, X, backend=backend, **{f"return_{name}": True})
            assert [field for field, x in got._asdict().items() if x is not None] == ["output", name]
