"""With a cache, in pieces or token by token, it is the same text as without one."""

import pytest
import torch
from transformers import DynamicCache

from selattn.errors import SelattnError
from tests.models.tiny import CONTEXT, VARIANTS, padded, tiny, token_ids


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def in_pieces(model, ids, mask, borders):
    """Logits of the pieces between the borders, each continuing the cache of those before."""
    cache, logits = None, []
    for begin, end in zip([0, *borders], [*borders, ids.shape[1]], strict=True):
        seen = None if mask is None else mask[:, :end]
        found = model(ids[:, begin:end], attention_mask=seen, past_key_values=cache, use_cache=True)
        cache = found.past_key_values
        logits.append(found.logits)
    assert cache.get_seq_length() == ids.shape[1]
    return torch.cat(logits, 1)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("borders", [[4, 5, 9], range(1, 12), [11]], ids=["pieces", "tokens", "prompt"])
def test_in_pieces_is_the_whole(changes, side, borders):
    model = tiny(**changes)
    ids, mask = padded([token_ids(12, seed=1), token_ids(7 if side else 12, seed=2)], side)
    mask = mask if side else None
    whole = model(ids, attention_mask=mask, use_cache=False).logits
    found = in_pieces(model, ids, mask, list(borders))
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    torch.testing.assert_close(found[real], whole[real], rtol=0, atol=1e-10)


STYLES = {
    "greedy": {},
    "beam": {"num_beams": 3},
    "sampling": {"do_sample": True, "temperature": 0.8},
    "several": {"do_sample": True, "num_return_sequences": 3},
}


def generate(model, ids, mask, **kwargs):
    torch.manual_seed(0)
    return model.generate(ids, attention_mask=mask, max_new_tokens=8, pad_token_id=0, **{"do_sample": False, **kwargs})


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_generated_text_is_that_without_a_cache(changes, style):
    model = tiny(**changes)
    ids, mask = padded([token_ids(9, seed=3), token_ids(4, seed=4)], "left")
    found = generate(model, ids, mask, **style)
    assert found.shape[1] == 17
    assert (found == generate(model, ids, mask, use_cache=False, **style)).all()


def test_a_left_padded_batch_gives_each_prompt_its_own_text():
    model, prompts = tiny(), [token_ids(n, seed=n) for n in (9, 4, 1)]
    ids, mask = padded(prompts, "left")
    found = generate(model, ids, mask)[:, ids.shape[1] :]
    for text, prompt in zip(found, prompts, strict=True):
        assert (text == generate(model, prompt[None], torch.ones(1, len(prompt)))[0, len(prompt) :]).all()


def test_selection_changes_the_text():
    """Otherwise the tests above would also pass with F lost between the steps."""
    model, ids = tiny(), token_ids(1, 9)
    assert (generate(model, ids, None) != generate(tiny(attention="standard"), ids, None)).any()


def test_the_strength_reaches_every_step():
    model, ids = tiny(), token_ids(1, 9)
    found = generate(model, ids, None, selection_strength=0.0)
    assert (found == generate(tiny(attention="standard"), ids, None)).all()


def test_a_returned_cache_can_be_continued():
    model, ids = tiny(), token_ids(1, 6)
    first = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0, return_dict_in_generate=True)
    second = model.generate(
        first.sequences, past_key_values=first.past_key_values, max_new_tokens=4, do_sample=False, pad_token_id=0
    )
    assert (second == model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)).all()


def test_a_cache_that_loses_f_is_refused():
    model, ids = tiny(), token_ids(1, 6)
    with pytest.raises(SelattnError, match="a DynamicCache does not keep F"):
        model(ids, past_key_values=DynamicCache())
    with pytest.raises(SelattnError, match="a DynamicCache does not keep F"):
        model.generate(ids, past_key_values=DynamicCache(), max_new_tokens=2, pad_token_id=0)
    for name in ("static", "dynamic", "quantized"):
        with pytest.raises(SelattnError, match=f"cache_implementation='{name}' does not keep F"):
            model.generate(ids, cache_implementation=name, max_new_tokens=2, pad_token_id=0)


def test_a_mistyped_argument_of_generate_is_refused():
    with pytest.raises(ValueError, match="selection_strenght"):
        tiny().generate(token_ids(1, 4), selection_strenght=0.5, max_new_tokens=2, pad_token_id=0)


def test_several_documents_and_a_cache_exclude_each_other():
    model, ids, positions = tiny(), token_ids(1, 6), torch.tensor([[0, 1, 2, 0, 1, 2]])
    assert model(ids, position_ids=positions).past_key_values is None
    with pytest.raises(SelattnError, match="a cache holds one sequence in each row"):
        model(ids, position_ids=positions, use_cache=True)
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(SelattnError, match="a cache holds one sequence in each row"):
        model(ids, position_ids=positions, past_key_values=cache)
    with pytest.raises(SelattnError, match="no cache before it"):
        model(ids, cu_seq_lens_q=torch.tensor([0, 3, 6]), past_key_values=cache)


def test_the_memory_term_needs_whole_sequences():
    model, ids = tiny(memory_epsilon=0.1), token_ids(1, 6)
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(SelattnError, match="are known of whole sequences only"):
        model(ids, past_key_values=cache, output_kept=True)
    found = model(ids, past_key_values=cache, labels=ids)
    assert found.memory_loss is None
    assert found.kept is None
    torch.testing.assert_close(found.loss, found.lm_loss)


def test_generation_stops_at_the_learned_positions():
    with pytest.raises(SelattnError, match=f"longer than the {CONTEXT} learned positions"):
        tiny().generate(token_ids(1, CONTEXT), max_new_tokens=2, do_sample=False, pad_token_id=0)
    rotary = tiny(positions="rotary")
    assert rotary.generate(token_ids(1, CONTEXT), max_new_tokens=9, pad_token_id=0).shape[1] == CONTEXT + 9


@pytest.mark.parametrize("budgets", [None, 4])
def test_generate_continues_rows_that_began_one_by_one(budgets):
    """Texts that were read into rows of one cache, as one batch with padding on the left."""
    model = tiny(positions="rotary")
    rows, cache = [token_ids(9, seed=3), token_ids(4, seed=4)], model.new_cache(budgets)
    cache.reserve(2)
    for place, row in enumerate(rows):
        with cache.only(place), torch.no_grad():
            model(row[None, :-1], past_key_values=cache)
    ids, mask = padded(rows, "left")
    found = generate(model, ids, mask, past_key_values=cache)
    for row, text in zip(rows, found, strict=True):
        alone = generate(model, row[None], torch.ones_like(row[None]), cache_budgets=budgets)
        assert text[9 - len(row) :].tolist() == alone[0].tolist()
