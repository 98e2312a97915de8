"""Every backend is the reference: results and all gradients, in random situations."""

import pytest
from hypothesis import assume, event, given

from selattn.ops import dispatch
from tests.ops.cases import BACKENDS, SHORT, assert_same, cases, examples

FAST = [name for name in BACKENDS if name != "reference"]


def compare(case, backend):
    assume(dispatch.BACKENDS[backend].refusal(case.request()) is None)
    for name in sorted(case.upstream):
        event(f"gradient of {name}")
    assert_same(case.run(backend), case.run("reference"))


@pytest.mark.parametrize("backend", FAST)
@examples(6)
@given(case=cases(SHORT))
def test_short_sequences(case, backend):
    compare(case, backend)


@pytest.mark.parametrize("backend", FAST)
@examples(2)
@given(case=cases())
def test_lengths_at_the_borders_of_strips(case, backend):
    compare(case, backend)
