"""Which backend runs: the one asked for, or the one that the written rule of "auto" names."""

from unittest import mock

import pytest
import torch
from hypothesis import given

from selattn.errors import SelattnError
from selattn.ops import backends, causal_attention, selective_attention
from selattn.ops.backends import dispatch
from selattn.ops.request import Attention, AuxRequest
from tests.ops.cases import BACKENDS, SHORT, attend, cases, examples

X = torch.randn(1, 2, 4, 3)


def test_backends_are_listed_with_why_not():
    assert tuple(backends()) == ("reference", "sdpa", "chunked", "cpu", "triton")
    assert {backends()[name] for name in BACKENDS} == {None}
    assert torch.cuda.is_available() or "there is no CUDA device" in backends()["triton"]
    with mock.patch.object(dispatch.BACKENDS["chunked"], "unavailable", return_value="no strips today"):
        assert backends()["chunked"] == "no strips today"
        with pytest.raises(
            SelattnError, match="'chunked' cannot do this: no strips today; use reference or cpu, or auto"
        ):
            selective_attention(X, X, X, backend="chunked")


def test_auto_takes_pytorchs_kernel_where_nothing_was_compiled_and_there_is_nothing_but_causality():
    causal_attention(X, X, X)
    with (
        mock.patch.object(dispatch.BACKENDS["cpu"], "unavailable", return_value="it was not built"),
        mock.patch.object(dispatch.BACKENDS["sdpa"], "attend", side_effect=AssertionError("sdpa ran")),
    ):
        with pytest.raises(AssertionError, match="sdpa ran"):
            causal_attention(X, X, X)
        causal_attention(X, X, X, window=2)
        causal_attention(X, X, X, softcap=2.0)
        causal_attention(X[:, :, 1:], X, X)


def test_auto_is_compiled_for_standard_attention_too():
    with mock.patch.object(dispatch.BACKENDS["cpu"], "attend", side_effect=AssertionError("cpu ran")):
        for x in (X, X.bfloat16()):
            with pytest.raises(AssertionError, match="cpu ran"):
                causal_attention(x, x, x)
        causal_attention(X.half(), X.half(), X.half())


def chosen(**options):
    """The backend that "auto" runs for this call."""
    ran = []

    def spy(name, real):
        return mock.Mock(
            unavailable=real.unavailable,
            trusted=real.trusted,
            refusal=real.refusal,
            attend=lambda r: ran.append(name) or Attention(r),
        )

    with mock.patch.dict(dispatch.BACKENDS, {name: spy(name, m) for name, m in dispatch.BACKENDS.items()}):
        attend(*([options.pop("x", X)] * 3), **options)
    return ran


def test_auto_is_compiled_where_it_can_and_else_chunked():
    assert chosen() == ["cpu"]
    assert chosen(x=X.bfloat16(), window=2, softcap=3.0, wanted=("memory", "living")) == ["cpu"]
    assert chosen(wanted=("f",)) == ["chunked"]
    assert chosen(x=X.half()) == ["chunked"]
    assert chosen(dropout_p=0.1) == ["chunked"]
    assert chosen(wanted=("final_f",)) == ["cpu"]
    assert chosen(x=X.clone().requires_grad_(), wanted=("final_f",)) == ["chunked"]
    assert chosen(wanted=("weights",)) == ["reference"]


def test_auto_is_chunked_where_nothing_was_compiled():
    with mock.patch.object(dispatch.BACKENDS["cpu"], "unavailable", return_value="it was not built"):
        assert chosen() == ["chunked"]
        with pytest.raises(SelattnError, match="'cpu' cannot do this: it was not built; use reference or chunked"):
            selective_attention(X, X, X, backend="cpu")


@examples(2)
@given(case=cases(SHORT))
def test_auto_never_picks_one_that_refuses(case):
    for request in (case.request(), case.request()._replace(wanted=AuxRequest(weights=True))):
        assert dispatch.BACKENDS[dispatch.choose(request)].refusal(request) is None


@examples(2)
@given(case=cases(SHORT))
def test_backends_refuse_nothing_else(case):
    """The reference does everything; only the weights are too much for `chunked`.

    What `cpu` refuses is in test_errors.py, and what `triton` refuses in triton/test_errors.py.
    """
    request = case.request()
    refused = {name for name in BACKENDS if dispatch.BACKENDS[name].refusal(request)} - {"cpu"}
    assert refused == set()
    asked = request._replace(wanted=AuxRequest(weights=True))
    assert {name for name in BACKENDS if dispatch.BACKENDS[name].refusal(asked)} == {"chunked", "cpu"}


def test_only_what_was_asked_for_comes_back():
    assert isinstance(selective_attention(X, X, X), torch.Tensor)
    assert isinstance(causal_attention(X, X, X), torch.Tensor)
    for name in AuxRequest._fields:
        for backend in ("auto", "reference"):
            output, aux = selective_attention(X, X, X, backend=backend, return_aux=AuxRequest(**{name: True}))
            assert output.shape == X.shape
            assert [field for field, x in aux._asdict().items() if x is not None] == [name]
