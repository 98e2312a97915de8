"""Rows are independent: whoever joins, leaves, waits or drafts beside it, each text gets exactly what it gets alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from selattn.cache import POLICIES, SelectiveCache, Threshold, attend
from selattn.errors import SelattnError
from selattn.ops import Selection
from selattn.ops.request import Tokens
from tests.cache.cases import cases, positions, some_case
from tests.cache.test_drafts import junk

EVENTS = ("join", "replace", "clear", "leave", "take", "step", "step", "step", "piece", "draft")


class Batch:
    """Texts of a case in the rows of one cache; `at` says how far each has come, and `texts` which one a row holds."""

    def __init__(self, case, backend):
        self.case, self.backend = case, backend
        self.cache = SelectiveCache(1, case.budget, case.make_policy())
        self.texts, self.at, self.found = [], {}, {}

    def attend(self, layer, tokens):
        return attend(layer, tokens, self.case.rules, backend=self.backend).output

    def tokens(self, texts, begins, counts):
        """[rows, ..., most of counts, ...] each text's next tokens, padded on the right with junk."""
        width = max(counts)
        other = junk(self.case.tokens, width, 7)

        def of(x, y):
            if x is None:
                return None
            parts = [
                torch.cat([x[t, :, b : b + n], y[t, :, : width - n]], -2)
                for t, b, n in zip(texts, begins, counts, strict=True)
            ]
            return torch.stack(parts)

        q, k, v, _, sq, sk = (
            None if name == "real" else of(x, getattr(other, name)) for name, x in self.case.tokens._asdict().items()
        )
        real = torch.arange(width) < torch.tensor(counts)[:, None]
        return Tokens(q, k, v, None if real.all() else real, sq, sk)

    def prefilled(self, text, count):
        """A cache of one row."""
        alone = self.cache.new_like()
        self.found[text] = [self.attend(alone.layers[0], self.tokens([text], [0], [count]))[0]]
        self.at[text] = count
        return alone

    def advance(self, counts):
        """Each row goes on by so many tokens; those that go on by none sit out."""
        counts = [min(n, self.case.size - self.at[t]) for t, n in zip(self.texts, counts, strict=True)]
        if not any(counts):
            return
        tokens = self.tokens(self.texts, [self.at[t] for t in self.texts], counts)
        with self.cache.only([row for row, n in enumerate(counts) if n]):
            output = self.attend(self.cache.layers[0], tokens)
        for text, n, new in zip(self.texts, counts, output, strict=True):
            self.found[text].append(new[:, :n])
            self.at[text] += n

    def draft(self, accepted, refused):
        """Each row goes on by some tokens with junk after them, which is taken back."""
        accepted = [min(n, self.case.size - self.at[t]) for t, n in zip(self.texts, accepted, strict=True)]
        width = max(n + r for n, r in zip(accepted, refused, strict=True))
        if not width:
            return
        tokens = self.tokens(self.texts, [self.at[t] for t in self.texts], [*accepted])
        extra = junk(self.case.tokens, width, 3)
        rows = torch.tensor(self.texts)

        def grown(x, y):
            return None if x is None else torch.cat([x, y[rows]], -2)[..., :width, :]

        q, k, v = (grown(x, y) for x, y in zip(tokens[:3], extra[:3], strict=True))
        sq, sk = (grown(x, y) for x, y in zip(tokens[4:], extra[4:], strict=True))
        real = torch.arange(width) < torch.tensor([n + r for n, r in zip(accepted, refused, strict=True)])[:, None]
        with self.cache.drafting():
            output = self.attend(self.cache.layers[0], Tokens(q, k, v, real, sq, sk))
            self.cache.roll_back([width - n for n in accepted])
        for text, n, new in zip(self.texts, accepted, output, strict=True):
            self.found[text].append(new[:, :n])
            self.at[text] += n

    def check(self, want):
        """Every text in the batch has the output and the tokens that it has alone."""
        layer = self.cache.layers[0]
        assert self.cache.rows == len(self.texts)
        assert (layer.length.tolist() if self.texts else []) == [self.at[t] for t in self.texts]
        assert not self.texts or (layer.seen >= layer.length).all()  # padding is counted
        held = positions(layer) if self.texts else []
        for row, text in enumerate(self.texts):
            assert held[row] == want.kept[text][self.at[text] - 1]
            output = torch.cat(self.found[text], -2)
            assert_close(output, want.output[text, :, : self.at[text]], rtol=0, atol=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25)
@given(st.data())
def test_any_interleaving_gives_each_text_what_it_gets_alone(policy, data):
    case = data.draw(cases((policy,), kinds=("full",), most=12))
    want = case.simulate()
    batch = Batch(case, data.draw(st.sampled_from(("auto", "reference"))))
    waiting = list(range(len(case.documents)))
    numbers = st.integers(0, 3)
    for _ in range(data.draw(st.integers(1, 12))):
        event, rows = data.draw(st.sampled_from(EVENTS)), len(batch.texts)
        if event in ("join", "replace") and waiting:
            text = waiting.pop(0)
            alone = batch.prefilled(text, data.draw(st.integers(1, case.size)))
            if event == "replace" and rows:
                row = data.draw(st.integers(0, rows - 1))
                if data.draw(st.booleans()):
                    batch.cache.clear_rows(row)
                batch.cache.insert(row, alone)
                waiting.append(batch.texts[row])
                batch.texts[row] = text
            else:
                batch.cache.append(alone)
                batch.texts.append(text)
        elif not rows:
            continue
        elif event == "clear":  # and the row begins again in its place
            row = data.draw(st.integers(0, rows - 1))
            batch.cache.clear_rows([row])
            text = batch.texts[row]
            batch.at[text], batch.found[text] = 0, []
            batch.advance([int(each == row) for each in range(rows)])
        elif event in ("leave", "take"):
            stay = data.draw(st.permutations(range(rows)))[: data.draw(st.integers(0, rows))]
            if event == "leave":
                batch.cache.batch_select_indices(torch.tensor(stay, dtype=torch.int64))
            else:
                batch.cache = batch.cache.take_rows(stay)
            waiting += [text for row, text in enumerate(batch.texts) if row not in stay]
            batch.texts = [batch.texts[row] for row in stay]
        elif event == "draft":
            each = st.lists(numbers, min_size=rows, max_size=rows)
            batch.draft(data.draw(each), data.draw(each))
        else:
            most = 1 if event == "step" else 4
            batch.advance(data.draw(st.lists(st.integers(0, most), min_size=rows, max_size=rows)))
        batch.check(want)


@pytest.mark.parametrize("policy", ["selective", "tova", "h2o", "none", Threshold(0.5)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("selection", [None, Selection()], ids=["standard", "selective"])
def test_nothing_of_an_old_occupant_stays(policy, backend, selection):
    """Not even what is infinite, which no mask keeps away."""
    case = some_case(policy, budget=None if policy == "none" else 6, size=14, batch=3, selection=selection)
    clean, used = (SelectiveCache(1, case.budget, case.make_policy()) for _ in range(2))
    dirt = Tokens(*(x.clone() for x in case.tokens[:3]))
    for x in dirt[:3]:
        x[1] = torch.inf
    attend(clean.layers[0], case.cut(0, 9), case.rules, backend=backend)
    attend(used.layers[0], dirt.cut(0, 9), case.rules, backend=backend)
    for cache in (clean, used):
        cache.clear_rows(1)
    for name, x in used.layers[0].tensors().items():
        assert torch.equal(x, clean.layers[0].tensors()[name]), name
        empty = -1 if name == "position" else 0
        assert (x[1] == empty).all(), name
    for i in range(9, 14):
        with used.only([0, 2]), clean.only([0, 2]):
            got, want = (
                attend(cache.layers[0], tokens.cut(i, i + 1), case.rules, backend=backend).output
                for cache, tokens in ((used, dirt), (clean, case.tokens))
            )
        assert torch.equal(got[[0, 2]], want[[0, 2]])
        assert (got[1] == 0).all()


def test_storage_follows_the_rows_that_are_there():
    """A long text that leaves takes its storage with it."""
    case = some_case(budget=None, size=200, batch=1)
    cache, short = (SelectiveCache(1) for _ in range(2))
    attend(cache.layers[0], case.cut(0, 200), case.rules)
    attend(short.layers[0], case.cut(0, 5), case.rules)
    cache.append(short)
    assert cache.layers[0].slots >= 200
    cache.clear_rows(0)
    assert cache.layers[0].slots < 20
    assert positions(cache.layers[0]) == [[[]], [list(range(5))]]
    for i in range(5, 60):  # while a longer row sits out, nothing grows
        with short.only(0):
            attend(short.layers[0], case.cut(i, i + 1), case.rules)
    cache.insert(0, short)
    before = cache.layers[0].slots
    for i in range(5, 30):
        with cache.only(1):
            tokens = Tokens(*(x.expand(2, -1, -1, -1) for x in case.cut(i, i + 1)[:3]))
            attend(cache.layers[0], tokens, case.rules)
    assert cache.layers[0].slots == before
    assert positions(cache.layers[0]) == [[list(range(60))], [list(range(30))]]


def test_to_transformers_rows_are_padded_on_the_left():
    case = some_case(batch=2)
    cache = SelectiveCache(2, 5)
    assert cache.rows == 0
    for layer in cache.layers:
        attend(layer, case.cut(0, 4), case.rules)
    cache.clear_rows([1])
    assert cache.get_seq_length() == 4
    assert cache.get_mask_sizes(2, 0) == (6, 0)
    for layer in cache.layers:
        attend(layer, case.cut(4, 5), case.rules)
    assert [layer.seen.tolist() for layer in cache.layers] == [[5, 1], [5, 1]]
    cache.clear_rows([0, 1])
    assert cache.get_seq_length() == 0
    assert cache.rows == 2


@pytest.mark.parametrize("policy", ["selective", "tova"])
def test_a_compiled_step_knows_who_sits_out(policy):
    torch._dynamo.reset()
    case, counter = some_case(policy, batch=3), CompileCounterWithBackend("aot_eager")
    eager, compiled = (SelectiveCache(1, case.budget, case.make_policy()) for _ in range(2))
    for cache in (eager, compiled):
        attend(cache.layers[0], case.cut(0, 7), case.rules)
    layer = compiled.layers[0]
    step = torch.compile(lambda tokens: attend(layer, tokens, case.rules).output, fullgraph=True, backend=counter)
    for i, rows in enumerate(([0, 2], [1], [0, 1], [2]), 7):
        with eager.only(rows), compiled.only(rows):
            got, want = step(case.cut(i, i + 1)), attend(eager.layers[0], case.cut(i, i + 1), case.rules).output
        assert_close(got, want, rtol=0, atol=1e-12)
        assert positions(layer) == positions(eager.layers[0])
    assert counter.frame_count == 1


def test_errors():
    case = some_case()
    cache, other = SelectiveCache(1, 5), SelectiveCache(1, 6)
    for each in (cache, other):
        attend(each.layers[0], case.cut(0, 3), case.rules)
    for call in (cache.clear_rows, cache.take_rows, lambda rows: cache.insert(rows, cache.new_like())):
        with pytest.raises(SelattnError, match=r"^there is no row 2: this cache holds 2, counted from 0$"):
            call([0, 2])
    with pytest.raises(SelattnError, match=r"^a row is named twice in \[1, 1\]$"):
        cache.clear_rows([1, 1])
    for call in (cache.append, lambda other: cache.insert([0, 1], other)):
        with pytest.raises(SelattnError, match=r"budgets \[5\] and the policy 'selective', the other for \[6\] and"):
            call(other)
    with pytest.raises(SelattnError, match=r"^1 rows cannot take the 2 rows of the other cache$"):
        cache.insert(0, cache.take_rows([0, 1]))
    low = cache.new_like()
    attend(low.layers[0], Tokens(*(x.float() for x in case.cut(0, 3)[:3])), case.rules)
    with pytest.raises(SelattnError, match=r"^the keys of these two caches differ: they must be of one model$"):
        cache.append(low)
    with pytest.raises(SelattnError, match=r"^no draft is open"):
        cache.roll_back([1, 0])
    with cache.drafting():
        attend(cache.layers[0], case.cut(3, 5), case.rules)
        with pytest.raises(
            SelattnError, match=r"^roll_back wants a number of tokens for each of the 2 rows, not \[1\]$"
        ):
            cache.roll_back([1])
        with pytest.raises(SelattnError, match=r"^a draft is open, and its rows cannot be changed"):
            cache.clear_rows(0)
    assert cache.layers[0].length.tolist() == [5, 5]  # what was not taken back is final
    assert not cache.is_recording_past(0)
