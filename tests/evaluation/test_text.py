"""Which rows a report may take: none that a search has seen, however either of them cuts the text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selattn.data import DocumentRows, PackedRows, Reading, build_store
from selattn.errors import SelattnError
from selattn.evaluation.text import Searched, Text, TextRows
from selattn.models.loading import load
from selattn.pruning import Procedure, Until
from selattn.pruning.run import Job, make_sets
from tests.data.bytes_tokenizer import BytesTokenizer
from tests.evaluation.folders import model_folder

LENGTHS = st.lists(st.integers(3, 60), min_size=4, max_size=40)
CONTEXTS = st.integers(8, 50)


def store_of(folder, lengths):
    """Documents that are told apart by their first characters; tokens are bytes, <BOS> in front and <EOS> behind."""
    texts = (f"{number:03d}" + "x" * (length - 3) for number, length in enumerate(lengths))
    return build_store(folder / "store", texts, BytesTokenizer())


def documents(rows):
    """The documents that rows are cut from."""
    return {BytesTokenizer().decode(row["input_ids"].tolist())[:3] for row in rows}


@st.composite
def searches(draw):
    """A store's lengths, then for a search and a report: the context, and whether only long rows are taken."""
    return draw(LENGTHS), [(draw(CONTEXTS), draw(st.booleans())) for _ in range(2)]


@given(searches(), st.integers(1, 12), st.integers(0, 5), st.booleans())
@settings(max_examples=80)
def test_who_skips_a_search_has_seen_nothing_of_it(tmp_path_factory, made, count, seed, known):
    """Long rows or all, at one context or at two, in both directions.

    One number is enough at the context of the search or a larger one, such as the model's own. Where the search itself
    is named the contexts do not matter.
    """
    lengths, ((context, long), (other, also_long)) = made
    if not known:
        context, other = sorted([context, other])
    store = store_of(tmp_path_factory.mktemp("text"), lengths)
    text = Text("any", long=long, seed=seed)
    skip = Searched(text, context, count, store.checksum) if known else count
    try:
        searched = documents(text.cut(store, context).take(count))
        report = TextRows(DocumentRows(store, other), seed, also_long)
        reported = report.take(None, skip)
    except SelattnError:
        return  # the text is too small for one of them, which says so
    assert len(searched) == count
    assert not searched & documents(reported)
    assert report.take(1, skip)[0]["input_ids"].equal(reported[0]["input_ids"])
    if known:  # nothing else is left out
        assert documents(reported) == documents(report.take()) - searched


@given(LENGTHS, CONTEXTS, st.integers(1, 6))
def test_packed_rows_are_skipped_one_by_one(tmp_path_factory, lengths, context, count):
    store = store_of(tmp_path_factory.mktemp("text"), lengths)
    try:
        rows = TextRows(PackedRows(store, context), 0)
        searched, reported = rows.numbers(count), rows.numbers(None, count)
    except SelattnError:
        return
    assert sorted(searched + reported) == list(range(len(rows)))


def test_few_rows_are_lost_where_documents_fill_the_context(tmp_path):
    """They are equally long for every search at this context, so each takes the first."""
    for long in (False, True):
        rows = TextRows(DocumentRows(store_of(tmp_path / str(long), range(20, 60)), 20), 0, long)
        assert len(rows.take(None, skip=16)) == 24


def test_of_another_text_nothing_is_left_out(tmp_path):
    store = store_of(tmp_path, range(10, 30))
    rows = TextRows(DocumentRows(store, 20), 0)
    for other in ("other.txt", "no-source-any-more"):
        assert len(rows.take(None, Searched(Text(other), 20, 5, "another checksum"))) == 20
    with pytest.raises(SelattnError, match="unknown layout 'pages'"):
        rows.take(None, Searched(Text("other.txt", layout="pages"), 20, 5, store.checksum))
    store.name = f"{Path('text.txt').resolve()} (validation)"
    with pytest.raises(SelattnError, match=r"text.txt \(validation\) has other tokens now than when it was searched"):
        rows.take(None, Searched(Text("text.txt"), 20, 5, "another checksum"))


def test_who_asks_for_too_much_is_told_what_is_left(tmp_path):
    rows = TextRows(DocumentRows(store_of(tmp_path, range(10, 30)), 20), 0)
    left = len(rows.take(None, skip=4))
    with pytest.raises(SelattnError, match=rf"20 rows, and 99 after the first 4 .*\({left} are left\).*--validation"):
        rows.take(99, skip=4)


@pytest.mark.parametrize("layouts", [("documents", "packed"), ("packed", "documents"), ("packed", "packed")])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_search_and_its_report_share_no_token_in_any_layout(tmp_path, layouts, seed):
    """Where the search is known its tokens are, too: also if the report has another layout and another order."""
    tokenizer = load(model_folder(tmp_path / "model")).tokenizer
    words = ["".join(chr(97 + (i // 26**k) % 26) for k in range(3)) for i in range(2000)]
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(words[i : i + 40]) for i in range(0, 2000, 40)))
    reading = Reading(validation=1.0)
    text, other = (
        Text(str(tmp_path / "text.txt"), layout=layout, seed=number, reading=reading)
        for layout, number in zip(layouts, (0, seed), strict=True)
    )
    job = Job("model", Path("out"), text, 6, Until(), Procedure(32, 4), report=other, report_rows=12)
    rows = text.rows(tokenizer, 32)
    searched, reported = (
        {
            word
            for batch in batches
            for row in batch.input_ids.tolist()
            for word in tokenizer.decode([i for i in row if i > 3]).split()
            if word in words
        }
        for batches in make_sets(job, rows, tokenizer)
    )
    assert len(searched) > 20
    assert len(searched & reported) <= 2 * 6  # a packed row may begin or end in the middle of a word
