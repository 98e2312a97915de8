"""Lines that were appended are there, wherever the process that wrote the next one was killed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from selattn.utils.journal import append_line, drop_half_a_line, whole_lines


@given(st.lists(st.dictionaries(st.text(), st.floats(allow_nan=False) | st.text()), min_size=1, max_size=5), st.data())
def test_a_file_that_was_cut_has_its_whole_lines(tmp_path_factory, values, data):
    file = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    ends = []
    for value in values:
        append_line(file, value)
        ends.append(file.stat().st_size)
    cut = data.draw(st.integers(0, ends[-1]))
    file.write_bytes(file.read_bytes()[:cut])
    whole = [value for value, end in zip(values, ends, strict=True) if end <= cut]
    assert [json.loads(line) for line in whole_lines(file)] == whole
    drop_half_a_line(file)
    append_line(file, "next")
    assert [json.loads(line) for line in whole_lines(file)] == [*whole, "next"]
