"""Log-perplexity is that of the model's own forward, however the rows are cut into batches."""

import pytest
import torch

from selattn.cache import Budgets, make_policy
from selattn.data import Reading
from selattn.errors import SelattnError
from selattn.evaluation import log_perplexity, make_batches
from selattn.evaluation.subjects import Subject
from selattn.evaluation.text import Text, text_names
from selattn.models.loading import load
from tests.evaluation.folders import WORDS, model_folder, text_file
from tests.pruning.cases import loss, model, rows

LENGTHS = (24, 3, 11, 24, 17, 2)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("budgets", "policy"), [(24, None), (5, None), ([4, 9, 3], "h2o"), (5, "tova"), (5, "window+4")]
)
def test_is_the_mean_over_all_tokens(size, budgets, policy):
    net = model()
    want = loss(net, rows(LENGTHS), Budgets.of(budgets).for_layers(3), policy or "selective")
    found = log_perplexity(net, make_batches(rows(LENGTHS), size), Budgets.of(budgets), policy)
    assert found == pytest.approx(want, rel=1e-12)


def test_budgets_that_drop_nothing_change_nothing():
    net, batches = model(), make_batches(rows(LENGTHS), 3)
    assert log_perplexity(net, batches, Budgets(24)) == pytest.approx(log_perplexity(net, batches), rel=1e-12)
    assert log_perplexity(net, batches, Budgets(3), "none") == pytest.approx(log_perplexity(net, batches), rel=1e-12)
    assert log_perplexity(net, batches, Budgets(3)) != pytest.approx(log_perplexity(net, batches), rel=1e-3)


def test_packed_rows_are_their_documents(tmp_path):
    """A packed row's documents have the losses that they have alone, with budgets too."""
    folder, text = model_folder(tmp_path / "model"), text_file(tmp_path / "text.txt", words=6)
    net = load(folder).model
    made = Text(str(text), layout="packed", reading=Reading(validation=1.0)).rows(load(folder).tokenizer, 32).take(9)
    for budgets in (None, Budgets(4)):
        total = count = 0
        for row in made:
            begins = (row["position_ids"] == 0).nonzero()[:, 0].tolist()
            for begin, end in zip(begins, [*begins[1:], 32], strict=True):
                ids, labels = row["input_ids"][begin:end], row["labels"][begin:end]
                with torch.no_grad():
                    logits = net(ids[None], use_cache=False, cache_budgets=budgets).logits[0, :-1]
                each = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
                total -= each[labels[1:] >= 0].sum().item()
                count += int((labels[1:] >= 0).sum())
        assert log_perplexity(net, make_batches(made, 4), budgets) == pytest.approx(total / count, rel=1e-5)


def test_long_rows_are_at_least_nine_tenths_of_the_context(tmp_path):
    folder, text = model_folder(tmp_path / "model"), tmp_path / "text.txt"
    text.write_text("\n\n".join("the cat sat on a mat " * n for n in range(1, 12)))
    tokenizer = load(folder).tokenizer
    every, long = (Text(str(text), long=long, reading=Reading(validation=1.0)).rows(tokenizer, 32) for long in (0, 1))
    lengths = sorted(int(row["attention_mask"].sum()) for row in every.take())
    assert sorted(int(row["attention_mask"].sum()) for row in long.take()) == [n for n in lengths if n >= 0.9 * 32]
    assert 0 < len(long) < len(every)
    text.write_text("the cat\n\n" * 40)
    with pytest.raises(SelattnError, match="no document of 29 tokens or more"):
        Text(str(text), long=True, reading=Reading(validation=1.0)).rows(tokenizer, 32)


def test_who_skips_n_rows_has_not_seen_a_search_on_n_rows(tmp_path):
    """Long rows keep their place among all: also those of a search on all rows are left out."""
    folder, text = model_folder(tmp_path / "model"), tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{WORDS[i % 20]} {WORDS[i // 20]} " * (i % 3 + 1) * 7 for i in range(60)))
    tokenizer = load(folder).tokenizer
    every, long = (Text(str(text), long=long, reading=Reading(validation=1.0)).rows(tokenizer, 32) for long in (0, 1))
    rows = [tuple(row["input_ids"].tolist()) for row in every.take()]
    kept = [tuple(row["input_ids"].tolist()) for row in long.take()]
    assert kept == [row for row in rows if row in set(kept)]
    assert 10 < len(kept) < 50
    for n in (1, 5, 9):
        left = {tuple(row["input_ids"].tolist()) for row in long.take(None, n)}
        assert not left & set(rows[:n])


def test_texts_have_names_of_their_own(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name in ("valid.txt", f"{folder}.txt"):
            (tmp_path / folder / name).write_text("x")
    sources = ["c4", *(str(tmp_path / name) for name in ("a/valid.txt", "b/valid.txt", "a/a.txt"))]
    assert list(text_names(sources).values()) == ["c4", *sources[1:3], "a.txt"]
    assert text_names([sources[3]] * 2) == {sources[3]: "a.txt"}


def test_rows_are_taken_once_and_in_the_order_of_the_seed(tmp_path):
    folder, text = model_folder(tmp_path / "model"), text_file(tmp_path / "text.txt")
    made = Text(str(text), reading=Reading(validation=1.0)).rows(load(folder).tokenizer, 32)
    ids = [tuple(row["input_ids"].tolist()) for row in (*made.take(15), *made.take(25, skip=15))]
    assert sorted(ids) == sorted(tuple(row["input_ids"].tolist()) for row in made.take())
    other = Text(str(text), seed=1, reading=Reading(validation=1.0)).rows(load(folder).tokenizer, 32)
    assert [tuple(row["input_ids"].tolist()) for row in other.take(15)] != ids[:15]
    for count, skip, says in ((41, 0, "41 after the first 0"), (None, 40, "more after the first 40"), (1, -1, "-1")):
        with pytest.raises(SelattnError, match=f"has 40 rows, and .*{says}"):
            made.take(count, skip)


def test_a_subject_is_a_model_with_its_budgets(tmp_path):
    folder = model_folder(tmp_path / "model")
    Budgets((3, 5)).save(tmp_path / "budgets.json")
    for text, budgets, policy in (
        ("", None, "selective"),
        ("@7", Budgets(7), "selective"),
        ("@none", None, "none"),
        ("@7:h2o", Budgets(7), "h2o"),
        (f"@{tmp_path / 'budgets.json'}:window+2", Budgets((3, 5)), "window+2"),
        (f"@{tmp_path}", Budgets((3, 5)), "selective"),
    ):
        found = Subject.parse(f"{folder}{text}")
        assert (found.description.budgets, found.policy_name) == (budgets, policy)
        assert make_policy(found.description.policy) == make_policy(policy)
    for text, says in (("@7:h20", "did you mean 'h2o'"), ("@1", "at least 2"), ("@nowhere", "cannot read the budgets")):
        with pytest.raises(SelattnError, match=says):
            Subject.parse(f"{folder}{text}")
