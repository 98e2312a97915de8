"""Columns that are left out: by the bound of csrc/attention/bounds.h, and nobody misses them."""

import pytest
import torch
from torch.testing import assert_close

from selattn.ops.backends.triton import configs
from tests.ops.cases import attend
from tests.ops.test_dead import DEFAULT, living_by_hand
from tests.ops.triton.interpreted.small import SMALL

N = 50


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(configs, "INTERPRETED", SMALL)


def inputs(gain=10.0, groups=1):
    q, k, v = (torch.randn(1, heads, N, 8) for heads in (2, groups, groups))
    return gain * q, k, v


@pytest.mark.parametrize("tolerance", [DEFAULT, 1e-2])
def test_living_share_is_the_one_counted_by_hand(tolerance):
    q, k, v = inputs(groups=2)
    v *= 10.0 ** (4 * torch.rand(1, 2, N, 1) - 2)
    F = attend(q, k, v, wanted=("f",), backend="reference").f
    got = attend(q, k, v, wanted=("living",), tolerance=tolerance, backend="triton").living
    seen = torch.ones(N, N, dtype=torch.bool).tril()
    want = living_by_hand(q, k, v, F, tolerance, 1.0, seen, block=SMALL.rows)
    assert (want < 1).all()
    assert_close(got, want.double(), rtol=1e-3, atol=0)


def test_with_no_tolerance_all_live():
    got = attend(*inputs(), enable_gqa=True, wanted=("living",), tolerance=0.0, backend="triton")
    assert got.living.tolist() == [1.0]


def test_a_large_value_has_to_be_forgotten_more():
    q, k, v = inputs()
    given = {"enable_gqa": True, "wanted": ("living",), "backend": "triton"}
    plain = attend(q, k, v, **given).living
    v[:, :, :30] *= 1e9
    got = attend(q, k, v, **given)
    exact = attend(q.double(), k.double(), v.double(), enable_gqa=True, backend="reference").output
    assert (got.living > plain).all()
    assert_close(got.output.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_what_is_not_finite_does_not_die(name):
    """The last query lets nothing die before it; a key or value that is not finite lives on, whatever the others do."""
    x = dict(zip(("query", "key", "value"), inputs(), strict=True))
    given = {"enable_gqa": True, "wanted": ("living",), "backend": "triton", "softcap": 9.0}
    want = attend(**x, **given).living
    x[name][:, :, N - 1 if name == "query" else 5] = torch.nan
    got = attend(**x, **given)
    if name == "query":
        assert (got.living == 1).all()
    else:
        assert (got.living > want).all()
    if name == "value":
        assert got.output[:, :, 5:].isnan().all()
