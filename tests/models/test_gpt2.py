"""Our GPT-2 variant beside transformers' own GPT-2 with the same weights."""

import pytest
import torch
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel

from selattn.errors import SelattnError
from selattn.models import from_gpt2
from tests.models.tiny import CONTEXT, VOCABULARY, token_ids
from tests.ops.literal import pseudo_code


def figure_2(module, query, key, value, attention_mask, **kwargs):
    """Figure 2 of the paper, as an attention function of transformers."""
    assert attention_mask is None
    return pseudo_code(query, key, value)[0].transpose(1, 2), None


AttentionInterface.register("figure_2", figure_2)


def stock(attn_implementation="eager", **changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 24, "n_layer": 3, "n_head": 3}
    special = {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3}
    config = GPT2Config(**{**sizes, **special, **changes}, attn_implementation=attn_implementation)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():  # biases begin at 0 and gains at 1, where mistakes would not show
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("changes", [{}, {"n_inner": 40}, {"tie_word_embeddings": False}], ids=str)
def test_standard_attention_gives_the_stock_logits(changes):
    model = stock(**changes)
    ids = token_ids(2, 20)
    torch.testing.assert_close(from_gpt2(model, "standard")(ids).logits, model(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_selective_attention_is_the_pseudo_code_put_into_the_stock_model(backend):
    model = stock("figure_2").double()
    ids = token_ids(2, 20)
    ours, wanted = from_gpt2(model, "selective", backend=backend)(ids).logits, model(ids).logits
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-10)
    assert (ours - from_gpt2(model, "standard")(ids).logits).abs().max() > 0.1  # F did something


def test_gradients_are_those_of_the_stock_model():
    model = stock("figure_2").double()
    ours = from_gpt2(model)
    ids = token_ids(2, 20)
    for each in (model, ours):
        each(ids, labels=ids).loss.backward()
    wanted = model.transformer.h[0].attn.c_attn.weight.grad[:, :24].T
    torch.testing.assert_close(ours.model.layers[0].attention.q_proj.weight.grad, wanted, rtol=0, atol=1e-6)
    wanted = model.transformer.wte.weight.grad  # as embedding and as head
    torch.testing.assert_close(ours.model.embed_tokens.weight.grad, wanted, rtol=0, atol=1e-6)


def test_the_variant_has_the_parameters_of_the_stock_model_and_nothing_else():
    model = stock()
    ours = from_gpt2(model)
    assert ours.num_parameters() == model.num_parameters()
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    theirs = {parameter.data_ptr() for parameter in model.parameters()}
    assert not theirs & {parameter.data_ptr() for parameter in ours.parameters()}
    assert from_gpt2(model.bfloat16().train()).dtype == torch.bfloat16


def test_a_form_that_gpt2_lacks_begins_with_initial_weights():
    model = stock()
    ours = from_gpt2(model, selection_source="separate", selection_strength=0.0)
    ids = token_ids(2, 12)
    torch.testing.assert_close(ours(ids).logits, model(ids).logits, rtol=0, atol=1e-5)
    assert ours.model.layers[0].attention.selection_q_proj.weight.std() > 0


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"activation_function": "relu"}, "activation is gelu_new"),
        ({"scale_attn_by_inverse_layer_idx": True}, "only GPT-2's own attention"),
        ({"scale_attn_weights": False}, "only GPT-2's own attention"),
        ({"add_cross_attention": True}, "only GPT-2's own attention"),
        ({"embd_pdrop": 0.3}, "embd_pdrop 0.3 and resid_pdrop 0.1 differ"),
    ],
)
def test_what_is_not_gpt2_is_refused(changes, line):
    with pytest.raises(SelattnError, match=line):
        from_gpt2(stock(**changes))
