"""The engine writes each text as `generate()` writes it alone, whoever joins, leaves, waits or drafts beside it."""

from functools import cache
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selattn.cache import POLICIES, make_policy
from selattn.errors import SelattnError
from selattn.models import Engine
from selattn.models.generation import sampler
from tests.models.tiny import CONTEXT, VOCABULARY, tiny, token_ids

MODELS = {
    "paper": {},
    "rotary": {"positions": "rotary"},
    "separate": {"selection_source": "separate", "positions": "rotary"},
    "gqa": {"num_attention_heads": 4, "num_key_value_heads": 2, "positions": "rotary"},
    "several masks": {"num_attention_heads": 4, "selection_head": [1, 3]},
    "windows": {"attention": ["selective:5", "local:3"], "positions": "rotary"},
    "standard": {"attention": "standard", "positions": "rotary"},
}
BUDGETS = (None, 3, (4, 7))
PROMPTS = [token_ids(n, seed=n) for n in (1, 3, 6, 9, 5)]


def no_end(**changes):
    """A model that never ends a text by itself."""
    model = tiny(torch.float32, **changes)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


named = cache(lambda name: no_end(**MODELS[name]))


@cache
def generated(name, budgets, policy):
    """What `generate()` writes after each prompt alone, as far as there are positions."""
    found = []
    for prompt in PROMPTS:
        ids, new = prompt[None], CONTEXT - 1 - len(prompt)
        heeded = budgets is not None or make_policy(policy).leaves_early
        how = {"cache_budgets": budgets, "cache_policy": policy if heeded else None, "do_sample": False}
        text = named(name).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **how)
        found.append(text[0, len(prompt) :].tolist())
    return found


@pytest.mark.parametrize("policy", [*POLICIES, "threshold=0.5"])
@settings(max_examples=8)
@given(data=st.data())
def test_rows_come_and_go_and_each_text_is_its_own(policy, data):
    left_out = {"separate"} if policy == "h2o" else {"standard"} if make_policy(policy).needs_f else set()
    name = data.draw(st.sampled_from([each for each in MODELS if each not in left_out]))
    model, budgets = named(name), data.draw(st.sampled_from(BUDGETS))
    engine, want = Engine(model, model.new_cache(budgets, policy)), generated(name, budgets, policy)
    waiting, texts, done = list(range(len(PROMPTS))), {}, set()
    for _ in range(data.draw(st.integers(4, 14))):
        event = data.draw(st.sampled_from(("add", "step", "step", "some", "draft", "draft", "remove")))
        full = {row for row, (text, written) in texts.items() if len(written) > len(want[text]) - 5}
        for row in full:
            engine.remove(row)
            done.add(row)
            del texts[row]
        new = {}
        if event == "add" and waiting:
            text = waiting.pop()
            texts[engine.add(PROMPTS[text].tolist())] = (text, [])
        elif event == "step":
            new = {row: [token] for row, token in engine.step().items()}
            assert new.keys() == texts.keys()
        elif event == "some" and texts:
            some = data.draw(st.sets(st.sampled_from(sorted(texts))))
            new = {row: [token] for row, token in engine.step(some).items()}
            assert new.keys() == some
        elif event == "draft":
            proposals = {}
            for row, (text, written) in texts.items():
                right = want[text][len(written) :][: data.draw(st.integers(0, 3))]
                wrong = [(want[text][len(written) + len(right)] + 1) % VOCABULARY]
                proposals[row] = right + wrong * data.draw(st.integers(0, 2))
                new[row] = right  # and one more
            got = engine.draft(proposals)
            assert {row: tokens[:-1] for row, tokens in got.items()} == new
            new = got
        elif event == "remove" and texts:
            row = data.draw(st.sampled_from(sorted(texts)))
            engine.remove(row)
            done.add(row)
            del texts[row]
        for row, tokens in new.items():
            texts[row][1].extend(tokens)
        assert engine.rows == tuple(texts)
        assert not done & set(engine.rows)
        for row, (text, written) in texts.items():
            assert written == want[text][: len(written)]
            assert engine.length(row) == len(PROMPTS[text]) + len(written)


def test_sampling_is_that_of_generate():
    model, prompt = no_end(positions="rotary"), PROMPTS[2]
    how = {"temperature": 0.7, "top_k": 11, "top_p": 0.8}
    torch.manual_seed(3)
    want = model.generate(prompt[None], max_new_tokens=12, do_sample=True, cache_budgets=5, **how)[0, 6:].tolist()
    torch.manual_seed(3)
    engine = Engine(model, model.new_cache(5), sampler(**how))
    row = engine.add(prompt)
    assert [engine.step()[row] for _ in range(12)] == want


def test_every_row_may_choose_in_its_own_way():
    model = no_end(positions="rotary")
    engine = Engine(model, model.new_cache())
    last = {}

    def least(logits):
        last["shape"] = logits.shape
        return logits.argmin(-1)

    greedy, odd, even = engine.add([1, 2]), engine.add([1, 2], least), engine.add([3, 4, 5], least)
    drawn = engine.add([1, 2], sampler(generator=torch.Generator().manual_seed(0)))
    tokens = engine.step()
    assert last["shape"] == (2, VOCABULARY)  # those who choose in the same way choose together
    logits = model(torch.tensor([[1, 2]])).logits[0, -1]
    assert tokens[greedy] == int(logits.argmax())
    assert tokens[odd] == int(logits.argmin())
    assert set(tokens) == {greedy, odd, even, drawn}


def test_the_last_token_is_not_computed_in_vain(monkeypatch):
    """A text of n tokens takes the prompt and n - 1 steps; a text that only joined takes none in that step."""
    model, calls = no_end(), []
    engine = Engine(model, model.new_cache())
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **more: calls.append(args[0].shape) or forward(*args, **more))
    engine.add([1, 2, 3])
    engine.step()
    assert calls == [(1, 3)]
    engine.add([4, 5])
    engine.step()
    assert calls == [(1, 3), (1, 2), (1, 1)]
    engine.step()
    assert calls == [(1, 3), (1, 2), (1, 1), (2, 1)]


def test_rows_are_given_back():
    """The pool stays as it is, whoever joins and leaves."""
    model = no_end(positions="rotary")
    engine = Engine(model, model.new_cache(4), rows=3)
    rows = [engine.add(token_ids(12, seed=seed)) for seed in range(3)]
    engine.step()
    size = engine.cache.nbytes()
    with pytest.raises(SelattnError, match=r"^all 3 rows are taken: remove one, or make the engine with more"):
        engine.add([5])
    for row in rows:
        engine.remove(row)
    assert engine.step() == {}
    assert engine.cache.get_seq_length() == 0
    row = engine.add([5])
    assert engine.step().keys() == {row}
    assert engine.cache.nbytes() == size


def test_a_long_prompt_is_read_in_pieces_beside_the_others():
    model, prompts = no_end(positions="rotary"), [token_ids(40, seed=1), token_ids(3, seed=2)]
    engine, calls, forward = Engine(model, model.new_cache(6), piece=16), [], model.forward
    with mock.patch.object(model, "forward", lambda ids, **more: calls.append(ids.shape) or forward(ids, **more)):
        short = engine.add(prompts[1])
        assert engine.step().keys() == {short}
        long = engine.add(prompts[0])
        assert [set(engine.step()) for _ in range(3)] == [{short}, {short}, {short, long}]
    assert calls == [(1, 3), (1, 16), (1, 1), (1, 16), (1, 1), (1, 8), (1, 1)]


@settings(max_examples=3)
@given(st.integers(0, 10_000), st.sampled_from([("selective", 5), ("tova", 6), ("h2o", 6)]))
def test_64_texts_come_and_go(seed, how):
    """Whoever joins and leaves at random writes what `generate()` writes alone."""
    policy, budget = how
    model, chance = no_end(positions="rotary").double(), torch.Generator().manual_seed(seed)  # no near-ties
    engine, texts, count = Engine(model, model.new_cache(budget, policy), rows=64, piece=24), {}, 12

    def drawn(most):
        return int(torch.randint(1, most + 1, (1,), generator=chance))

    prompts = [token_ids(drawn(30), seed=seed + i) for i in range(90)]
    waiting = list(range(90))
    want = {}
    while waiting or texts:
        while waiting and len(texts) < 64 and drawn(3) > 1:
            text = waiting.pop(0)
            texts[engine.add(prompts[text])] = (text, [])
        for row, token in engine.step().items():
            texts[row][1].append(token)
        for row, (text, written) in list(texts.items()):
            if len(written) >= count or (written and drawn(20) == 1):
                want[text] = written
                engine.remove(row)
                del texts[row]
    for text in range(0, 90, 9):
        ids = prompts[text][None]
        how = {"cache_budgets": budget, "cache_policy": policy, "max_new_tokens": count, "do_sample": False}
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
        assert want[text] == alone[0, ids.shape[1] :].tolist()[: len(want[text])]


def test_errors():
    model = no_end()
    engine = Engine(model, model.new_cache())
    with pytest.raises(SelattnError, match=r"^the prompt is empty: give at least one token$"):
        engine.add([])
    row = engine.add([1, 2])
    for call in (engine.remove, engine.length, lambda n: engine.step([n]), lambda n: engine.draft({n: [1]})):
        with pytest.raises(SelattnError, match=r"^there is no row 7: the rows are \[0\]$"):
            call(7)
    engine.step()
    with pytest.raises(SelattnError, match="learned positions"):
        engine.add(token_ids(CONTEXT + 1))
    assert engine.rows == (row,)  # and it goes on
    assert engine.step().keys() == {row}


@pytest.mark.parametrize("drafts", [False, True])
def test_a_text_that_grows_past_the_learned_positions_ends_alone(drafts):
    """The others of its step go on; its row is free, and its reason is told."""
    model = named("paper")
    engine = Engine(model, model.new_cache(4), rows=3)
    prompts = [token_ids(CONTEXT - 2, seed=5), token_ids(CONTEXT, seed=6), token_ids(3, seed=7)]
    rows, written = [engine.add(prompt) for prompt in prompts], [[], [], []]
    for _ in range(6):
        if drafts:
            tokens = engine.draft({row: [0] * 5 for row in engine.rows})
        else:
            tokens = {row: [token] for row, token in engine.step().items()}
        for row, more in tokens.items():
            written[row] += more
    assert set(engine.ended) == set(rows[:2])
    assert engine.rows == (rows[2],)
    for prompt, text, count in zip(prompts, written, (3, 1, 6), strict=True):
        ids = prompt[None]
        want = model.generate(ids, max_new_tokens=count, do_sample=False, cache_budgets=4)[0, len(prompt) :]
        assert text[:count] == want.tolist()
        assert len(text) == count or drafts
    with pytest.raises(SelattnError, match=f"has ended: the {CONTEXT} learned positions are used up"):
        engine.step([rows[0]])
    assert engine.add([1]) not in rows  # a free row
