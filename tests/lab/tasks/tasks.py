"""Tasks with random settings."""

from hypothesis import strategies as st

from lab.tasks import Copy, Parity, VariableAssignment

variable_assignments = st.builds(
    VariableAssignment,
    st.integers(1, 40),
    st.integers(1, 60),
    st.integers(1, 30),
    drawn_values=st.just(None) | st.just(1),
)
copies = st.integers(1, 30).flatmap(
    lambda longest: st.builds(Copy, st.just(longest), st.integers(1, longest), st.integers(1, 40))
)
parities = st.builds(Parity, st.integers(2, 80))
tasks = variable_assignments | copies | parities
seeds = st.integers(0, 2**64 - 1)
