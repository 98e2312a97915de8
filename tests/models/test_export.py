"""torch.export with dynamic shapes and a mask: one program for every batch and length."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import T5Config, T5ForConditionalGeneration

from selattn import make_selective
from selattn.errors import SelattnError
from tests.models.stock.families import tiny


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


STOCK = {"llama": {"selection": "new", "cache_budgets": [4, 6]}, "gpt2": {"cache_budgets": 4, "cache_policy": "h2o"}}
WITHOUT = {"use_cache": False}


@pytest.mark.filterwarnings("ignore:.*side effects happened")  # of the way transformers captures outputs
@pytest.mark.parametrize(
    ("family", "cache", "strict"),
    [*((family, cache, False) for family in STOCK for cache in ({}, WITHOUT)), ("llama", {}, True)],
    ids=str,
)
def test_a_stock_model_is_exported_as_ours_is(family, cache, strict):
    """The program gives the whole output, by its names."""
    model = make_selective(tiny(family), **STOCK[family])
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = {"input_ids": any_size, "attention_mask": any_size} | dict.fromkeys(cache)
    ids, mask = inputs(2, 10)
    with torch.no_grad():
        given = {"input_ids": ids, "attention_mask": mask, **cache}
        program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=strict).module()
        for batch, length in ((3, 17), (2, 33), (1, 5)):
            ids, mask = inputs(batch, length)
            want = model(ids, attention_mask=mask, use_cache=False)
            got = program(input_ids=ids, attention_mask=mask, **cache)
            assert type(got) is type(want)
            assert_close(got.logits[mask.bool()], want.logits[mask.bool()])


def test_a_stock_model_is_exported_without_a_cache():
    model, (ids, _) = make_selective(tiny("llama")), inputs(2, 10)
    with pytest.raises(SelattnError, match=r"is exported without a cache: pass use_cache=False"):
        torch.export.export(model, (ids,), {"use_cache": True})


@pytest.mark.parametrize("cache", [{}, WITHOUT], ids=str)
def test_a_selective_t5_is_exported(cache):
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = make_selective(T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval())
    given = {"input_ids": inputs(2, 9)[0], "decoder_input_ids": inputs(2, 7)[0], **cache}
    with torch.no_grad():
        program = torch.export.export(model, (), given).module()
        given |= {"decoder_input_ids": 60 - given["decoder_input_ids"]}
        assert_close(program(**given).logits, model(**{**given, **WITHOUT}).logits)
