"""The backend that is asked for does all of it: training, a prompt, the eviction order, and every step of decoding."""

from collections import Counter

import pytest
import torch

from selattn.ops import Backend
from selattn.ops.backends.dispatch import BACKENDS
from tests.models.tiny import tiny, token_ids


class Counting(Backend):
    """The reference, which counts what it is asked for."""

    name = "counting"

    def __init__(self):
        self.calls, self.plain_one = Counter(), BACKENDS["reference"]

    def attend(self, request):
        self.calls["attend"] += 1
        return self.plain_one.attend(request)

    def order(self, request):
        self.calls["order"] += 1
        return self.plain_one.order(request)

    def step(self, request):
        self.calls["step"] += 1
        return self.plain_one.step(request)


def generated(model, ids):
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=0)


def test_a_backend_of_the_users_own_decodes():
    model, ids = tiny(cache_budgets=5), token_ids(1, 9)
    model.generation_config.eos_token_id = None
    want = generated(model, ids)
    model.model.backend = mine = Counting()
    assert torch.equal(generated(model, ids), want)
    assert mine.calls == {"attend": 2, "order": 2, "step": 2 * 5}  # two layers; the last token is not read
    mine.calls.clear()
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert mine.calls == {"attend": 2, "order": 2}


def test_the_configs_backend_decodes(monkeypatch):
    """`backend="reference"`, in the place of which one stands that counts."""
    mine = Counting()
    monkeypatch.setitem(BACKENDS, "reference", mine)
    model, ids = tiny(cache_budgets=5, backend="reference"), token_ids(1, 9)
    model.generation_config.eos_token_id = None
    generated(model, ids)
    assert mine.calls == {"attend": 2, "order": 2, "step": 2 * 5}


@pytest.mark.parametrize("policy", ["selective", "tova"])
def test_the_reference_writes_the_same_text(policy):
    ids = token_ids(2, 9)
    texts = [generated(tiny(cache_budgets=4, cache_policy=policy, backend=name), ids) for name in ("reference", "auto")]
    assert torch.equal(*texts)
