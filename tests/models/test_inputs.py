"""Padding on either side and documents in one row: each sequence gets what it has alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DataCollatorWithFlattening

from selattn.errors import SelattnError
from tests.models.tiny import CONTEXT, VARIANTS, gradients, logits_alone, padded, tiny, token_ids

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=4)


def rows_of(lengths):
    return [token_ids(n, seed=i) for i, n in enumerate(lengths)]


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows(changes, side):
    model, rows = tiny(**changes), rows_of([9, 4, 1, 12])
    ids, mask = padded(rows, side)
    found = model(ids, attention_mask=mask).logits
    for logits, real, alone in zip(found, mask.bool(), logits_alone(model, rows), strict=True):
        close(logits[real], alone)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_packed_rows(changes):
    model, rows = tiny(**changes), rows_of([9, 4, 1, 12])  # longer than the context, each document is not
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(
        [{"input_ids": row} for row in rows]
    )
    wanted = torch.cat(logits_alone(model, rows))
    lengths = {name: batch[name] for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")}
    for given_ in (
        {"position_ids": batch["position_ids"]},
        {"seq_idx": batch["seq_idx"]},
        lengths,
        {"position_ids": batch["position_ids"], "seq_idx": batch["seq_idx"], **lengths},
    ):
        close(model(batch["input_ids"], **given_).logits[0], wanted)


@settings(max_examples=10)
@given(LENGTHS, LENGTHS, st.sampled_from(["left", "right"]))
def test_padded_rows_of_several_documents(first, second, side):
    model = tiny(positions="rotary")
    packs = [rows_of(first), rows_of(second)]
    ids, mask = padded([torch.cat(pack) for pack in packs], side)
    positions, _ = padded([torch.cat([torch.arange(len(row)) for row in pack]) for pack in packs], side)
    found = model(ids, attention_mask=mask, position_ids=positions).logits
    for logits, real, pack in zip(found, mask.bool(), packs, strict=True):
        close(logits[real], torch.cat(logits_alone(model, pack)))


@pytest.mark.parametrize("attention", ["selective", "standard"])
def test_the_loss_is_that_of_the_sequences_alone(attention):
    """No token predicts across a border, though nobody has put -100 there; memory is counted by sequence."""
    model, rows = tiny(attention=attention, memory_epsilon=0.1), rows_of([9, 4, 2, 12])
    alone = [model(row[None], labels=row[None]) for row in rows]
    targets = [len(row) - 1 for row in rows]
    wanted = sum(found.lm_loss * n for found, n in zip(alone, targets, strict=True)) / sum(targets)
    ids, mask = padded(rows, "left")
    flat = torch.cat(rows)[None]
    positions = torch.cat([torch.arange(len(row)) for row in rows])[None]
    found = [
        model(ids, attention_mask=mask, labels=ids),
        model(*(x.flip(0) for x in padded(rows, "right")), labels=padded(rows, "right")[0].flip(0)),
        model(flat, position_ids=positions, labels=flat),
    ]
    for each in found:
        torch.testing.assert_close(each.lm_loss, wanted)
        if attention == "selective":
            kept = sum(one.kept * len(row) for one, row in zip(alone, rows, strict=True)) / 27
            torch.testing.assert_close(each.kept, kept)


def test_what_stands_in_padding_does_not_matter():
    model, rows = tiny(), rows_of([9, 4])
    ids, mask = padded(rows, "left")
    other = ids.masked_fill(mask == 0, 3)
    close(model(other, attention_mask=mask).logits[mask.bool()], model(ids, attention_mask=mask).logits[mask.bool()])
    odd = (mask.cumsum(-1) - 1).masked_fill(mask == 0, -1)  # positions as some callers leave them
    close(
        model(ids, attention_mask=mask, position_ids=odd).logits[mask.bool()],
        model(ids, attention_mask=mask).logits[mask.bool()],
    )
    loss = model(ids, attention_mask=mask, labels=ids).loss
    loss.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


def test_a_position_means_the_same_alone_and_given():
    model, ids = tiny(), token_ids(2, 9)
    close(model(ids, position_ids=torch.arange(9)[None]).logits, model(ids).logits)
    later = model(ids, position_ids=torch.arange(5, 14)[None]).logits
    assert (later - model(ids).logits).abs().max() > 0.01


def test_embeddings_instead_of_ids():
    model, ids = tiny(), token_ids(2, 9)
    close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, model(ids).logits)


IDS = token_ids(2, 6)
WRONG = [
    (
        {"attention_mask": torch.ones(2, 1, 6, 6)},
        r"attention_mask must be \[batch, tokens so far\].*documents are told",
    ),
    ({"attention_mask": torch.ones(2, 7)}, r"= \[2, 6\] with 1 for real tokens, not \[2, 7\]"),
    ({"position_ids": torch.arange(7)[None]}, r"position_ids must be \[batch, tokens\] = \[2, 6\], not \[1, 7\]"),
    ({"position_ids": torch.arange(20, 26)[None]}, "a sequence of 26 tokens is longer than the 24 learned positions"),
    ({"position_ids": torch.arange(-1, 5)[None]}, "position_ids must be at least 0, not -1"),
    ({"seq_idx": torch.zeros(3, 6, dtype=torch.int64)}, "seq_idx must be"),
    ({"cu_seq_lens_q": torch.tensor([0, 6])}, "cu_seq_lens_q describes one packed row"),
    ({"inputs_embeds": torch.zeros(2, 6, 16)}, "exactly one of input_ids and inputs_embeds"),
    ({"lables": IDS}, "unknown argument 'lables' of forward: did you mean 'labels'?"),
    ({"atention_mask": IDS}, "did you mean 'attention_mask'?"),
    ({"is_causal": False}, "unknown argument 'is_causal' of forward"),
]


@pytest.mark.parametrize(("arguments", "line"), WRONG, ids=[line[:30] for _, line in WRONG])
def test_what_cannot_be_read_is_told_in_one_line(arguments, line):
    with pytest.raises(SelattnError, match=line) as caught:
        tiny()(IDS, **arguments)
    assert "\n" not in str(caught.value)


def test_what_transformers_passes_is_taken():
    passes = {"cache_position": torch.arange(6), "max_length_q": 6, "max_length_k": 6, "return_dict": True}
    model = tiny()
    close(model(IDS, **passes, logits_to_keep=2, use_cache=False).logits, model(IDS).logits[:, -2:])
    assert isinstance(model(IDS, return_dict=False), tuple)
    assert isinstance(model.model(IDS, return_dict=False), tuple)


def test_a_sequence_past_the_learned_positions():
    with pytest.raises(SelattnError, match=f"{CONTEXT + 1} tokens is longer than the {CONTEXT} learned positions"):
        tiny()(token_ids(1, CONTEXT + 1))
    assert tiny()(token_ids(1, CONTEXT)).logits.shape[1] == CONTEXT
    assert tiny(positions="rotary")(token_ids(1, 2 * CONTEXT)).logits.shape[1] == 2 * CONTEXT
