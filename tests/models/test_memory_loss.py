"""The memory term beside equation 2 of the paper, written as loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selattn.models.outputs import kept_fractions, kept_tokens, memory_term, share_of_labels
from selattn.ops import Sequences
from selattn.ops.selection import memory
from tests.models.tiny import VARIANTS, gradients, padded, tiny, token_ids

# Equation 2 knows one selection mask, F of at least 0, and no windows.
PLAIN = {
    name: VARIANTS[name] for name in ("paper", "rotary", "separate", "gqa", "extra heads", "half strength", "gpt2")
}
PLAIN["mixed"] = {"attention": ["standard", "selective", "local:3"], "num_hidden_layers": 4}


def equation_2(layers, rows, epsilon, tau):
    """layers [L] of F [B][N][N]; rows [B] of lists of sequences, each the list of its token's places in the row."""
    total = 0.0
    for F in layers:
        for b, sequences in enumerate(rows):
            for places in sequences:
                M = []
                for i in range(1, len(places) + 1):
                    m = i
                    for k in range(1, i + 1):
                        m -= min(F[b][places[i - 1]][places[k - 1]], tau) / tau
                    M.append(m)
                total += max(M)
    real = sum(len(places) for sequences in rows for places in sequences)
    return epsilon * total / (len(layers) * real)


@st.composite
def batches(draw):
    """Rows of one length: padding, documents, padding."""
    length = draw(st.integers(1, 9))
    rows, ids = [], []
    for _ in range(draw(st.integers(1, 3))):
        labels = draw(st.lists(st.integers(1, 3), min_size=length, max_size=length).map(sorted))
        left = draw(st.integers(0, length - 1))
        right = draw(st.integers(0, length - 1 - left))
        row = [0 if j < left or j >= length - right else label for j, label in enumerate(labels)]
        ids.append(row)
        rows.append([[j for j in range(length) if row[j] == number] for number in sorted(set(row) - {0})])
    return torch.tensor(ids), rows


@given(batches(), st.integers(1, 3), st.sampled_from([0.5, 1.0, 3.0]), st.integers(0, 10**6))
def test_random_f(batch, layers, tau, seed):
    ids, rows = batch
    sequences = Sequences.from_documents(ids, ids > 0)
    n = ids.shape[1]
    F = 2 * torch.rand(layers, len(rows), 1, n, n, generator=torch.Generator().manual_seed(seed)).double()
    i, j = torch.arange(n)[:, None], torch.arange(n)
    seen = (j <= i) & (sequences.start[:, None] == sequences.start[..., None]) & sequences.real[:, None]
    kept = [kept_tokens(memory(f, seen[:, None], tau), sequences) for f in F]
    term = memory_term(kept_fractions(kept, torch.zeros(len(rows), n, 1), sequences), 0.1)
    assert abs(term.item() - equation_2(F[:, :, 0].tolist(), rows, 0.1, tau)) < 1e-6
    assert 0 <= term <= 0.1


@pytest.mark.parametrize("changes", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("batch", [1, 3])
def test_in_the_model(changes, side, batch):
    model = tiny(**changes, memory_epsilon=0.1, memory_tau=1.5).train()
    rows = [token_ids(n, seed=n) for n in ((12, 7, 9)[:batch] if side else (12,) * batch)]
    ids, mask = padded(rows, side)
    found = model(ids, attention_mask=mask if side else None, labels=ids, output_f=True)
    layers = [F[:, 0].tolist() for F in found.f if F is not None]
    wanted = equation_2(layers, [[row.nonzero()[:, 0].tolist()] for row in mask], 0.1, 1.5)
    assert abs(found.memory_loss.item() - wanted) < 1e-6
    assert 0 < found.memory_loss < 0.1
    torch.testing.assert_close(found.loss.item(), (found.lm_loss + found.memory_loss).item())
    assert (found.kept.isnan() == torch.tensor([not kind.selective for kind in model.config.kinds])).all()
    torch.testing.assert_close(found.memory_loss, 0.1 * found.kept[~found.kept.isnan()].mean())


def test_nothing_selected_keeps_everything():
    model = tiny(selection_strength=0.0, memory_epsilon=0.1).train()
    ids = token_ids(2, 9)
    found = model(ids, labels=ids)
    torch.testing.assert_close(found.kept, torch.ones(2, dtype=found.kept.dtype))
    torch.testing.assert_close(found.memory_loss.item(), 0.1)


def test_epsilon_weighs_the_term_and_0_leaves_it_out():
    ids = token_ids(2, 9)
    small, large, none = (tiny(memory_epsilon=e).train()(ids, labels=ids) for e in (0.1, 0.3, 0.0))
    torch.testing.assert_close(3 * small.memory_loss, large.memory_loss)
    assert none.memory_loss == 0
    torch.testing.assert_close(none.loss, none.lm_loss)
    torch.testing.assert_close(none.kept, small.kept)  # logged all the same
    assert tiny(attention="standard", memory_epsilon=0.1).train()(ids, labels=ids).kept is None


def whole_and_micro(model, rows, groups):
    """The gradient of all rows at once, and the sum of those of the groups, as a trainer forms it."""
    ids, mask = padded(rows, "right")
    labels = ids.masked_fill(mask == 0, -100)
    items = (labels[:, 1:] != -100).sum()
    found = []
    for parts in ([range(len(rows))], groups):
        model.zero_grad()
        for part in parts:
            index = torch.tensor(list(part))
            model(
                ids[index], attention_mask=mask[index], labels=labels[index], num_items_in_batch=items
            ).loss.backward()
        found.append(gradients(model))
    return found


@pytest.mark.parametrize("lengths", [(12, 12, 12, 12), (12, 7, 8, 11)], ids=["full", "padded"])
def test_micro_batches_with_equal_numbers_of_labels_give_the_gradient_of_the_batch(lengths):
    model = tiny(memory_epsilon=0.5).train()
    rows = [token_ids(n, seed=n + i) for i, n in enumerate(lengths)]
    assert sum(lengths[:2]) == sum(lengths[2:])
    whole, micro = whole_and_micro(model, rows, [(0, 1), (2, 3)])
    for name, gradient in whole.items():
        torch.testing.assert_close(micro[name], gradient, rtol=0, atol=1e-6)
    without = whole_and_micro(tiny(memory_epsilon=0.0).train(), rows, [(0, 1, 2, 3)])[0]
    assert max((whole[name] - without[name]).abs().max() for name in whole) > 1e-3  # the term has a gradient


def test_otherwise_each_term_counts_by_its_share_of_the_labels():
    model = tiny(memory_epsilon=0.5).train()
    rows = [token_ids(n, seed=n) for n in (12, 5, 6)]
    _, micro = whole_and_micro(model, rows, [(0,), (1, 2)])
    model.zero_grad()
    for part, labels in (([rows[0]], 11), (rows[1:], 4 + 5)):
        ids, mask = padded(part, "right")
        alone = model(ids, attention_mask=mask, labels=ids)  # its mean over its own labels
        (alone.loss * labels / 20).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(micro[name], gradient, rtol=0, atol=1e-6)


def test_shares_add_up_to_one():
    labels = token_ids(4, 9)
    labels[0, 3:] = -100
    items = (labels != -100).sum()
    assert sum(share_of_labels(part, items) for part in labels.split(1)) == 1
    assert share_of_labels(labels, None) == 1
