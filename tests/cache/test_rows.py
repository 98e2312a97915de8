"""Rows are independent: whoever joins, leaves, waits or drafts, each text gets exactly what it gets alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from selattn.cache import POLICIES, SelectiveCache, SlotLayer, Threshold, attend, make_policy
from selattn.cache.pool import Pool
from selattn.errors import SelattnError
from selattn.ops import Selection
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules
from tests.cache.cases import cases, positions, some_case
from tests.cache.test_drafts import junk

EVENTS = ("join", "clear", "leave", "copy", "step", "step", "step", "piece", "draft")
ROWS = 5


class Batch:
    """Texts of a case in some rows of a pool; `at` says how far each has come, and `places` which row it has."""

    def __init__(self, case, backend):
        self.case, self.backend = case, backend
        self.cache = SelectiveCache(1, case.budget, case.make_policy(), rows=ROWS)
        self.places, self.at, self.found = {}, {}, {}

    def attend(self, tokens):
        return attend(self.cache.layers[0], tokens, self.case.rules, backend=self.backend).output

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

    def join(self, text, place, count):
        """A text's first tokens go into a free row."""
        self.places[text], self.at[text], self.found[text] = place, 0, []
        self.advance({text: count})

    def advance(self, counts):
        """Each of these texts continues by so many tokens."""
        counts = {text: min(n, self.case.size - self.at[text]) for text, n in counts.items()}
        texts = [text for text, n in counts.items() if n]
        if not texts:
            return
        tokens = self.tokens(texts, [self.at[t] for t in texts], [counts[t] for t in texts])
        with self.cache.only([self.places[t] for t in texts]):
            output = self.attend(tokens)
        self.take(texts, [counts[t] for t in texts], output)

    def draft(self, texts, accepted, refused):
        """Each text continues by some tokens with junk after them, which is taken back."""
        accepted = [min(n, self.case.size - self.at[t]) for t, n in zip(texts, accepted, strict=True)]
        width = max(n + r for n, r in zip(accepted, refused, strict=True))
        if not width:
            return
        tokens = self.tokens(texts, [self.at[t] for t in texts], [*accepted])
        extra = junk(self.case.tokens, width, 3)
        rows = torch.tensor(texts)

        def grown(x, y):
            return None if x is None else torch.cat([x, y[rows]], -2)[..., :width, :]

        q, k, v = (grown(x, y) for x, y in zip(tokens[:3], extra[:3], strict=True))
        sq, sk = (grown(x, y) for x, y in zip(tokens[4:], extra[4:], strict=True))
        real = torch.arange(width) < torch.tensor([n + r for n, r in zip(accepted, refused, strict=True)])[:, None]
        with self.cache.only([self.places[t] for t in texts]), self.cache.drafting():
            output = self.attend(Tokens(q, k, v, real, sq, sk))
            self.cache.roll_back([width - n for n in accepted])
        self.take(texts, accepted, output)

    def take(self, texts, counts, output):
        for text, n, new in zip(texts, counts, output, strict=True):
            self.found[text].append(new[:, :n])
            self.at[text] += n

    def check(self, want):
        """Every text in the pool has the output and the tokens that it has alone."""
        layer = self.cache.layers[0]
        assert self.cache.rows == ROWS
        if layer.pool is None:
            return
        for text, place in self.places.items():
            assert int(layer.length[place]) == self.at[text]
            assert layer.seen[place] >= layer.length[place]  # padding is counted
            assert self.at[text] == 0 or positions(layer)[place] == want.kept[text][self.at[text] - 1]
            if self.found[text]:
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
    for _ in range(data.draw(st.integers(1, 12))):
        event = data.draw(st.sampled_from(EVENTS))
        free = [row for row in range(ROWS) if row not in batch.places.values()]
        if event == "join" and waiting and free:
            batch.join(waiting.pop(0), data.draw(st.sampled_from(free)), data.draw(st.integers(1, case.size)))
        elif not batch.places:
            continue
        elif event in ("clear", "leave", "copy"):
            text = data.draw(st.sampled_from(sorted(batch.places)))
            place = batch.places[text]
            if event == "copy" and free:  # the text moves to another row
                batch.places[text] = data.draw(st.sampled_from(free))
                batch.cache.copy_rows(place, batch.places[text])
                batch.cache.clear_rows(place)
            elif event == "clear":  # and the text begins again in its place
                batch.cache.clear_rows([place])
                batch.at[text], batch.found[text] = 0, []
                batch.advance({text: 1})
            elif event == "leave":
                batch.cache.clear_rows(place)
                del batch.places[text]
                waiting.append(text)
        else:
            texts = data.draw(st.lists(st.sampled_from(sorted(batch.places)), min_size=1, unique=True))
            if event == "draft":
                each = st.lists(st.integers(0, 3), min_size=len(texts), max_size=len(texts))
                batch.draft(texts, data.draw(each), data.draw(each))
            else:
                batch.advance({text: data.draw(st.integers(1, 1 if event == "step" else 4)) for text in texts})
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
        assert (x[1] == (-1 if name == "position" else 0)).all(), name
    for i in range(14):
        new = Tokens(*(x[[0, 1, 2]] for x in case.cut(i, i + 1)[:3]))
        got, want = (attend(cache.layers[0], new, case.rules, backend=backend).output for cache in (used, clean))
        assert torch.equal(got, want)


@pytest.mark.parametrize("policy", [*POLICIES, "selective-per-head", "tova-per-head"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_other_rows_are_neither_read_nor_written(policy, backend):
    """They may hold anything, NaN too; and the rows of a pool may lie in another program's memory."""
    rules = Rules(Selection((1, 2)) if policy == "selective-per-head" else Selection())
    case = some_case(policy, budget=6, size=20, batch=2, selection=rules.selection)
    alone = SlotLayer(6, make_policy(policy))
    attend(alone, case.cut(0, 3), rules, backend=backend)
    pooled = SlotLayer(6, make_policy(policy))
    pool = Pool.empty(case.cut(0, 1), rules, pooled.policy.per_head, pooled.policy.needs_weights, 7, 6)
    blocks = {}
    for name in ("keys", "values", "f", "score", "position"):
        x = getattr(pool, name)
        if not x.numel():
            continue
        between = x[0].numel() + 5
        block = torch.full((7, between), -7 if name == "position" else torch.nan, dtype=x.dtype)
        setattr(pool, name, block.as_strided(x.shape, (between, *x[0].stride())))
        blocks[name] = block
    pool.clear(torch.tensor([4, 2]))
    before = {name: block.clone() for name, block in blocks.items()}
    pooled.pool, pooled.dtype, pooled.device = pool, pool.keys.dtype, pool.keys.device
    pooled.use(torch.tensor([4, 2]))
    attend(pooled, case.cut(0, 3), rules, backend=backend)
    for i in range(3, 20):
        got = attend(pooled, case.cut(i, i + 1), rules, backend=backend).output
        want = attend(alone, case.cut(i, i + 1), rules, backend=backend).output
        assert torch.equal(got, want)
    assert positions(pooled) == positions(alone)
    others = [0, 1, 3, 5, 6]
    for name, block in blocks.items():
        assert_close(block[others], before[name][others], rtol=0, atol=0, equal_nan=True, msg=name)
        assert pooled.storage.tensors()[name].data_ptr() == block.data_ptr()


def test_joining_costs_the_same_however_many_rows_there_are():
    """No tensor of the pool is made again, and nothing but the own row is written."""
    case = some_case(size=30, batch=1)
    for rows in (2, 50):
        cache = SelectiveCache(1, 8, "selective", rows=rows)
        with cache.only(0):
            attend(cache.layers[0], case.cut(0, 1), case.rules)
        pointers = {name: x.data_ptr() for name, x in cache.layers[0].tensors().items()}
        versions = {name: x._version for name, x in cache.layers[0].tensors().items()}
        assert cache.layers[0].storage.slots == 8
        with cache.only(1):
            attend(cache.layers[0], case.cut(0, 25), case.rules)
        cache.clear_rows(1)
        assert {name: x.data_ptr() for name, x in cache.layers[0].tensors().items()} == pointers
        assert all(x._version > versions[name] for name, x in cache.layers[0].tensors().items() if x.numel())
        assert positions(cache.layers[0])[0] == [[0]]


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
def test_a_compiled_step_takes_any_rows(policy):
    torch._dynamo.reset()
    case, counter = some_case(policy, batch=3), CompileCounterWithBackend("aot_eager")
    eager, compiled = (SelectiveCache(1, case.budget, case.make_policy()) for _ in range(2))
    for cache in (eager, compiled):
        attend(cache.layers[0], case.cut(0, 7), case.rules)
    layer = compiled.layers[0]
    step = torch.compile(lambda tokens: attend(layer, tokens, case.rules).output, fullgraph=True, backend=counter)
    for i, rows in enumerate(([0, 2], [2, 1], [1, 0], [2, 0]), 7):
        new = Tokens(*(x[rows] for x in case.cut(i, i + 1)[:3]))
        with eager.only(rows), compiled.only(rows):
            got, want = step(new), attend(eager.layers[0], new, case.rules).output
        assert_close(got, want, rtol=0, atol=1e-12)
        assert positions(layer) == positions(eager.layers[0])
    assert counter.frame_count == 1


def test_errors():
    case = some_case()
    cache = SelectiveCache(1, 5)
    attend(cache.layers[0], case.cut(0, 3), case.rules)
    copying, naming = lambda rows: cache.copy_rows(rows, [1, 0]), lambda rows: cache.only(rows).__enter__()
    for call in (cache.clear_rows, copying, naming):
        with pytest.raises(SelattnError, match=r"^there is no row 2: this cache holds 2, counted from 0$"):
            call([0, 2])
    with pytest.raises(SelattnError, match=r"^a row is named twice in \[1, 1\]$"):
        cache.clear_rows([1, 1])
    with pytest.raises(SelattnError, match=r"^2 rows cannot become copies of 1$"):
        cache.copy_rows(0, [0, 1])
    wrong = r"^this cache holds a batch of 1, not 2: begin with a new cache"
    with cache.only(1), pytest.raises(SelattnError, match=wrong):
        attend(cache.layers[0], case.cut(3, 4), case.rules)
    with pytest.raises(SelattnError, match=r"^reserve at least 1 row, not 0$"):
        cache.reserve(0)
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
        with pytest.raises(SelattnError, match=r"^a draft is open, and its rows cannot be changed"), cache.only(1):
            pass
    assert cache.layers[0].length.tolist() == [5, 5]  # what was not taken back is final
    assert not cache.is_recording_past(0)
    cache.reserve(4)
    assert positions(cache.layers[0])[2:] == [[[]], [[]]]
    with pytest.raises(SelattnError, match=r"^the rows of this cache were reserved: name those of a batch with only"):
        cache.batch_select_indices(torch.tensor([0]))
