"""What a model is called with: a wrong kind of thing is one line, before any work is done."""

import numpy as np
import pytest
import torch

from selattn.errors import SelattnError
from tests.models.tiny import tiny, token_ids

IDS = token_ids(2, 6)
ONES = torch.ones_like(IDS)
WRONG = [
    ({"input_ids": IDS.numpy()}, r"input_ids must be a torch tensor, not numpy.ndarray \(torch.from_numpy makes"),
    ({"input_ids": IDS.tolist()}, "input_ids must be a torch tensor, not list"),
    ({"input_ids": {"input_ids": IDS}}, "input_ids must be a torch tensor, not dict"),
    ({"input_ids": IDS[0]}, r"input_ids must be \[batch, tokens\], not \[6\]"),
    ({"input_ids": IDS.float()}, "input_ids must hold whole numbers, not torch.float32"),
    ({"attention_mask": np.ones((2, 6))}, "attention_mask must be a torch tensor, not numpy.ndarray"),
    ({"attention_mask": ONES.tolist()}, "attention_mask must be a torch tensor, not list"),
    ({"position_ids": np.arange(6)[None]}, "position_ids must be a torch tensor, not numpy.ndarray"),
    ({"position_ids": ONES.float()}, "position_ids must hold whole numbers, not torch.float32"),
    ({"seq_idx": ONES.tolist()}, "seq_idx must be a torch tensor, not list"),
    ({"cu_seq_lens_q": [0, 6]}, "cu_seq_lens_q must be a torch tensor, not list"),
    ({"labels": IDS.numpy()}, "labels must be a torch tensor, not numpy.ndarray"),
    ({"labels": IDS[:, :3]}, r"labels must be \[batch, tokens\] = \[2, 6\], not \[2, 3\]"),
    ({"labels": IDS.float()}, "labels must hold whole numbers, not torch.float32"),
    ({"input_ids": None, "inputs_embeds": torch.zeros(2, 6)}, r"inputs_embeds must be \[batch, tokens, 16\], not \[2"),
    ({"input_ids": None, "inputs_embeds": torch.zeros(2, 6, 15)}, r"inputs_embeds must be \[batch, tokens, 16\]"),
    ({"past_key_values": {}}, "a dict does not keep F"),
    ({"cache_budgets": np.int64(4)}, "a budget must be a whole number of at least 2 tokens"),
    ({"selection_strength": "half"}, "strength must be a number or a 0-d tensor, not 'half'"),
]


@pytest.mark.parametrize(("given", "says"), WRONG, ids=[" ".join(given) for given, _ in WRONG])
def test_the_wrong_kind_is_one_line(given, says):
    with pytest.raises(SelattnError, match=f"^{says}"):
        tiny(torch.float32)(**{"input_ids": IDS, **given})


def test_ids_of_32_bits_and_masks_of_one():
    model = tiny()
    want = model(IDS, labels=IDS).loss
    assert torch.equal(model(IDS.int(), ONES.bool(), labels=IDS).loss, want)


@pytest.mark.parametrize("given", [{}, {"attention_mask": ONES}, {"labels": IDS}, {"attention_mask": ONES.bool()}])
def test_a_model_without_memory_has_shapes(given):
    """On the meta device, as those ask who want to know what a model would take."""
    model = tiny().to("meta")
    given = {name: x.to("meta") for name, x in given.items()}
    found = model(IDS.to("meta"), use_cache=False, **given)
    assert found.logits.shape == (2, 6, 31)
    assert found.logits.is_meta
