"""Choices that are longer than the context: every token given what fits before it."""

import pytest
import torch
from transformers import AutoTokenizer

from selattn.cache import Budgets
from selattn.evaluation import tasks
from selattn.models.loading import load
from tests.evaluation.folders import model_folder

pytestmark = pytest.mark.filterwarnings("ignore")  # what lm-eval and its dependencies warn of is not ours
CONTEXT = 32


def one_by_one(model, before, choice, budgets):
    """log p of a choice, each token in a forward of its own: pieces of half a context, after what fits of the rest."""
    found = []
    for i in range(len(choice)):
        begin = i // (CONTEXT // 2) * (CONTEXT // 2) if len(choice) > CONTEXT else 0
        end = min(len(choice), begin + CONTEXT // 2) if len(choice) > CONTEXT else len(choice)
        text = (before + choice)[: len(before) + end]
        first = max(0, len(text) - CONTEXT - 1)  # the last token of a piece is not an input
        with torch.no_grad():
            ids = torch.tensor([text[first : len(before) + i]])
            logits = model(ids, use_cache=False, cache_budgets=budgets).logits[0, -1]
        found.append(logits.log_softmax(-1)[choice[i]].item())
    return sum(found)


@pytest.mark.parametrize("budgets", [None, Budgets(5)])
def test_long_choices_are_scored_in_pieces(tmp_path, budgets):
    folder = model_folder(tmp_path / "model", max_position_embeddings=CONTEXT)
    model = load(folder).model
    scorer = tasks.make_scorer(model, AutoTokenizer.from_pretrained(folder), 3, budgets)
    draw = torch.Generator().manual_seed(0)
    lengths = [(5, 75), (3, 10), (1, CONTEXT), (40, CONTEXT + 1), (20, 30), (2, 2 * CONTEXT), (1, 1)]
    requests = [
        (None, *(torch.randint(4, 250, (n,), generator=draw).tolist() for n in (before, choice)))
        for before, choice in lengths
    ]
    got = scorer._loglikelihood_tokens(requests, disable_tqdm=True)
    want = [one_by_one(model, before, choice, budgets) for _, before, choice in requests]
    assert [each[0] for each in got] == pytest.approx(want, rel=1e-4)
    assert not any(greedy for _, greedy in got)


def test_a_greedy_choice_is_known(tmp_path):
    """Also in pieces: what the model itself would say."""
    folder = model_folder(tmp_path / "model", max_position_embeddings=CONTEXT)
    model = load(folder).model
    scorer = tasks.make_scorer(model, AutoTokenizer.from_pretrained(folder))
    text = [3, 7, 9]
    for i in range(2 * CONTEXT):
        piece = i // (CONTEXT // 2) * (CONTEXT // 2) + CONTEXT // 2  # where the piece of this token ends
        first = max(0, 3 + piece - CONTEXT - 1)
        with torch.no_grad():
            text.append(model(torch.tensor([text[first:]]), use_cache=False).logits[0, -1].argmax().item())
    changed = [*text[:-1], (text[-1] + 1) % 250]
    requests = [(None, ids[:3], ids[3:]) for ids in (text, changed)]
    assert [greedy for _, greedy in scorer._loglikelihood_tokens(requests, disable_tqdm=True)] == [True, False]
