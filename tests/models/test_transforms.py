"""torch.func over a model: the derivatives are those of a plain backward pass, with budgets, too.

They are the reference's, which "auto" takes; the other backends have none, and say so.
"""

import pytest
import torch
from torch.testing import assert_close

from selattn.errors import SelattnError
from tests.models.tiny import tiny, token_ids

SITUATIONS = {
    "no budgets": {},
    "paper": {"cache_budgets": 4},
    "rotary": {"positions": "rotary", "cache_budgets": [3, 5]},
    "h2o": {"cache_budgets": 4, "cache_policy": "h2o"},
    "separate form": {"selection_source": "separate", "cache_budgets": 4},
    "sparse": {"attention": ["strided:3", "selective"], "cache_budgets": 4},
}
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")  # by torch's forward mode itself


def situation(name):
    """A function of the embeddings [B, N, d_model], two of them, and the gradient of its sum."""
    model = tiny(**SITUATIONS[name])
    x, direction = torch.randn(2, 2, 9, model.config.hidden_size, dtype=torch.float64)

    def f(x):
        return model(inputs_embeds=x).logits.sin().sum()

    leaf = x.clone().requires_grad_()
    return f, x, direction, torch.autograd.grad(f(leaf), leaf)[0]


@pytest.mark.parametrize("name", SITUATIONS)
def test_grad_and_vmap(name):
    f, x, _, want = situation(name)
    assert_close(torch.func.grad(f)(x), want, rtol=0, atol=1e-9)
    rows = torch.func.vmap(torch.func.grad(lambda row: f(row[None])))(x)
    assert_close(rows, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", SITUATIONS)
def test_forward_mode(name):
    f, x, direction, want = situation(name)
    assert_close(torch.func.jvp(f, (x,), (direction,))[1], (want * direction).sum(), rtol=1e-9, atol=1e-9)


def test_gradients_of_the_weights():
    model, ids = tiny(cache_budgets=4), token_ids(2, 8)
    weights = {name: x.detach() for name, x in model.named_parameters()}

    def loss(weights):
        return torch.func.functional_call(model, weights, (ids,), {"labels": ids}).loss

    found = torch.func.grad(loss)(weights)
    model(ids, labels=ids).loss.backward()
    for name, x in model.named_parameters():
        assert_close(found[name], x.grad, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("length", [1, 3])
def test_a_cache_outlives_a_call_and_a_transform_does_not(length):
    model = tiny()
    with torch.no_grad():
        cache = model(token_ids(2, 8)).past_key_values
        assert torch.func.vmap(lambda row: model(row[None]).logits)(token_ids(2, 8)).shape == (2, 1, 8, 31)
    x = torch.randn(2, length, model.config.hidden_size, dtype=torch.float64)
    with pytest.raises(SelattnError, match="a cache cannot be filled inside a transform"):
        torch.func.grad(lambda x: model(inputs_embeds=x, past_key_values=cache).logits.sum())(x)
    assert cache.get_seq_length() == 8
