"""Padding between the turns of a text: every way to run it gives what the text gives without its padding."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selattn.cache import POLICIES
from tests.models.tiny import CONTEXT, tiny, token_ids

KINDS = ("selective", "selective:3", "standard", "local:3", "strided:3", "fixed:4:1")
POSITIONS = ("learned", "rotary")


@st.composite
def masks(draw):
    """[B, N] rows of real tokens and holes, each with a real token."""
    batch, length = draw(st.integers(1, 3)), draw(st.integers(2, CONTEXT))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=batch, max_size=batch))
    for row in rows:
        row[draw(st.integers(0, length - 1))] = True
    return torch.tensor(rows)


def alone(model, ids, mask, **how):
    """The logits of the real tokens, of each row by itself and without its padding."""
    return torch.cat(
        [model(row[real][None], use_cache=False, **how).logits[0] for row, real in zip(ids, mask, strict=True)]
    )


def in_turns(model, ids, mask, borders, positions, new_only, **how):
    """The logits of the real tokens, turn by turn with a cache; masks tell of all tokens so far, or of the new ones."""
    cache, found = None, []
    for begin, end in itertools.pairwise(sorted({0, *borders, ids.shape[1]})):
        at = None if positions is None else positions[:, begin:end]
        told = mask[:, begin if new_only else 0 : end].long()
        turn = model(ids[:, begin:end], told, at, cache, use_cache=True, **how)
        cache = turn.past_key_values
        found.append(turn.logits)
    return torch.cat(found, 1)[mask]


@settings(max_examples=40)
@given(
    mask=masks(),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    budgets=st.none() | st.integers(2, 9) | st.tuples(st.integers(2, 9), st.integers(2, 9)),
    policy=st.sampled_from(tuple(POLICIES)),
    borders=st.sets(st.integers(1, CONTEXT - 1)),
    positions=st.sampled_from(POSITIONS),
    says_positions=st.booleans(),
    new_only=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_hole_counts_for_nothing(mask, kinds, budgets, policy, borders, positions, says_positions, new_only, seed):
    model, ids = tiny(seed=seed, attention=list(kinds), positions=positions), token_ids(*mask.shape, seed=seed)
    how = {"cache_budgets": budgets, "cache_policy": policy}
    at = (mask.long().cumsum(-1) - 1).masked_fill(~mask, 1) if says_positions else None
    with torch.no_grad():
        want = alone(model, ids, mask, **how)
        whole = model(ids, mask.long(), at, use_cache=False, **how).logits[mask]
        torch.testing.assert_close(whole, want, rtol=0, atol=1e-9)
        turns = in_turns(model, ids, mask, {b for b in borders if b < mask.shape[1]}, at, new_only, **how)
        torch.testing.assert_close(turns, want, rtol=0, atol=1e-9)


def test_gradients_pass_a_hole():
    model, ids = tiny(attention=["selective:3", "strided:3"]), token_ids(1, 12)
    mask = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1, 1]])
    found = []
    for row, real in ((ids, mask), (ids[mask.bool()][None], None)):
        model.zero_grad()
        model(row, real, labels=row).loss.backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=0, atol=1e-9, msg=name)
