"""torch.export with dynamic shapes and a mask: one program for every batch and length."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from selattn import SelectiveConfig, SelectiveForCausalLM


class Logits(nn.Module):
    """What a program is made of: token ids and a mask in, logits out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        return self.model(ids, attention_mask=mask).logits


def inputs(batch, length):
    """Rows that are padded on the left, the first one more than the others."""
    ids = 1 + torch.arange(batch * length).view(batch, length) % 39
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, :2] = 0
    return ids, mask


@pytest.mark.parametrize("changes", [{}, {"positions": "rotary"}, {"attention": ["selective", "local:4"]}], ids=str)
def test_exported_with_a_mask_it_is_the_same_at_other_sizes(changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
    model = Logits(
        SelectiveForCausalLM(SelectiveConfig(vocab_size=40, max_position_embeddings=64, **sizes, **changes)).eval()
    )
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(model, inputs(2, 10), dynamic_shapes=(any_size, any_size)).module()
    for batch, length in ((3, 17), (2, 33), (1, 5)):
        given = inputs(batch, length)
        with torch.no_grad():
            want = model(*given)
        assert_close(program(*given), want)
