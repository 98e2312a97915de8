"""torch.export of a full forward: one graph for every batch, every length and every mask, pruned or not."""

import itertools

import pytest
import torch
from torch.export import Dim

from selattn.errors import SelattnError
from tests.models.tiny import ALL_KINDS, CONTEXT, padded, tiny, token_ids

MODELS = {
    "paper": {},
    "rotary": {"positions": "rotary", "selection_source": "separate"},
    "all kinds": {"attention": ALL_KINDS, "num_hidden_layers": 6},
    "pruned": {"cache_budgets": [4, 7], "num_attention_heads": 4, "num_key_value_heads": 2},
    "h2o": {"cache_budgets": 4, "cache_policy": "h2o"},
}
SHAPES = [(9, 5), (CONTEXT, 12, 3, 7), (4,), (2, 1)]  # lengths of rows


def exported(model, strict):
    ids, mask = padded([token_ids(9), token_ids(5)], "left")
    either = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=CONTEXT)}
    given = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        return torch.export.export(model, (), given, dynamic_shapes=dict.fromkeys(given, either), strict=strict)


@pytest.mark.parametrize(("name", "strict"), [*((name, False) for name in MODELS), ("paper", True)])
def test_one_graph_for_every_shape_and_mask(name, strict):
    model = tiny(**MODELS[name])
    graph = exported(model, strict).module()
    for lengths, side in itertools.product(SHAPES, ("left", "right")):
        ids, mask = padded([token_ids(length, seed=length) for length in lengths], side)
        real = mask.bool()
        with torch.no_grad():
            want = model(ids, attention_mask=mask, use_cache=False).logits
            got = graph(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(got[real], want[real], rtol=0, atol=1e-10)


def test_what_cannot_be_exported_is_told_in_one_line():
    with pytest.raises(SelattnError, match=r"^budgets with a sparse pattern cannot be exported"):
        exported(tiny(attention="strided:3", cache_budgets=4, cache_policy="tova"), strict=False)


def test_a_pruned_forward_is_one_graph_with_gradients():
    """As in training with budgets in force."""
    torch._dynamo.reset()
    model, ids = tiny(cache_budgets=4).train(), token_ids(2, 12)
    compiled, found = torch.compile(model, fullgraph=True, backend="aot_eager"), []
    for run in (model, compiled):
        model.zero_grad()
        run(ids, labels=ids, use_cache=False).loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)
