"""Every backend is the reference: results and all gradients, in random situations."""

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from selattn.ops.backends import dispatch
from tests.ops.cases import BACKENDS, LENGTHS, SHORT, TILED, assert_same, cases, examples

FAST = [name for name in BACKENDS if name != "reference"]


def compare(case, backend):
    assume(dispatch.BACKENDS[backend].refusal(case.request()) is None)
    for name in sorted(case.upstream):
        event(f"gradient of {name}")
    gradients = case.differentiable(backend)
    assert_same(case.run(backend, gradients=gradients), case.run("reference", gradients=gradients))


@pytest.mark.parametrize("backend", FAST)
@examples(6)
@given(data=st.data())
def test_short_sequences(data, backend):
    compare(data.draw(cases(SHORT, backend=backend)), backend)


@pytest.mark.parametrize("backend", FAST)
@examples(2)
@given(data=st.data())
def test_lengths_at_the_borders_of_strips_and_tiles(data, backend):
    compare(data.draw(cases(TILED if backend == "cpu" else LENGTHS, backend=backend)), backend)
