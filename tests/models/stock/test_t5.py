"""T5, whose decoder's self-attention selects, with its position bias, and nothing else changes."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration

import selattn
from selattn.cache import POLICIES
from selattn.errors import SelattnError
from tests.models.stock.families import tokens

LAYERS = {"num_layers": 2, "num_decoder_layers": 3}


def tiny(seed=0, **more):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 61, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_heads": 4, **LAYERS}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    config = T5Config(**sizes, **buckets, dropout_rate=0.0, decoder_start_token_id=0, **more)
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=0.3)
            if hasattr(module, "relative_attention_bias"):
                module.relative_attention_bias.weight.normal_()
    return model


def literal(model, source, target, mask=None):
    """The logits by hand: the decoder's layers written down, with head 0's logits, bias included, for S."""
    model = model.eval()
    encoded = model.encoder(input_ids=source, attention_mask=mask).last_hidden_state
    x, bias = model.decoder.embed_tokens(target), None
    n = target.shape[1]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    for block in model.decoder.block:
        own, cross, feed = block.layer
        a = own.SelfAttention
        h = own.layer_norm(x)
        q, k, v = (p(h).unflatten(-1, (a.n_heads, -1)).transpose(1, 2) for p in (a.q, a.k, a.v))
        bias = a.compute_bias(n, n) if bias is None else bias
        logits = q @ k.mT + bias
        S = logits[:, :1].relu().masked_fill(~seen, 0.0) * (1 - torch.eye(n))
        S[..., 0] = 0.0
        F = S.cumsum(-2).roll(1, -2)
        F[..., 0, :] = 0.0
        weights = (logits - F).masked_fill(~seen, -torch.inf).softmax(-1)
        x = x + a.o((weights @ v).transpose(1, 2).flatten(2))
        c = cross.EncDecAttention
        h = cross.layer_norm(x)
        q = c.q(h).unflatten(-1, (c.n_heads, -1)).transpose(1, 2)
        k, v = (p(encoded).unflatten(-1, (c.n_heads, -1)).transpose(1, 2) for p in (c.k, c.v))
        logits = q @ k.mT
        if mask is not None:
            logits = logits.masked_fill(mask[:, None, None] == 0, -torch.inf)
        x = x + c.o((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = feed(x)
    x = model.decoder.final_layer_norm(x)
    scale = model.model_dim**-0.5 if model.config.scale_decoder_outputs else 1.0
    return model.lm_head(x * scale)


@torch.no_grad()
def test_strength_0_is_the_stock_model():
    model, source, target = tiny().double(), tokens(2, 15), tokens(2, 20, seed=3)
    mask = torch.ones_like(source)
    mask[1, 9:] = 0
    given = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
    stock = model(**given).logits
    selattn.make_selective(model, strength=0.0)
    assert_close(model(**given).logits, stock, atol=1e-6, rtol=0)
    selattn.make_standard(model)
    assert torch.equal(model(**given).logits, stock)
    assert type(model) is T5ForConditionalGeneration


@torch.no_grad()
def test_strength_1_is_the_papers_sketch_in_the_decoder():
    model, source, target = tiny(), tokens(2, 15), tokens(2, 20, seed=3)
    mask = torch.ones_like(source)
    mask[1, 9:] = 0
    wanted = literal(model, source, target, mask)
    stock = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    selattn.make_selective(model)
    got = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(got, stock, atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("policy", POLICIES)
def test_decoding_equals_the_pruned_forward(policy):
    model, source, target = selattn.make_selective(tiny()), tokens(2, 15), tokens(2, 24, seed=3)
    encoded, limits = model.encoder(input_ids=source), {"cache_budgets": [5, 9, 7], "cache_policy": policy}
    whole = model(encoder_outputs=encoded, decoder_input_ids=target, use_cache=False, **limits).logits
    cache = model.new_cache([5, 9, 7], policy)
    parts = [target[:, :7], *target[:, 7:].split(1, 1)]
    steps = [model(encoder_outputs=encoded, decoder_input_ids=part, past_key_values=cache).logits for part in parts]
    assert_close(torch.cat(steps, 1), whole, atol=1e-4, rtol=1e-4)
    unpruned = model(encoder_outputs=encoded, decoder_input_ids=target, use_cache=False).logits
    assert not torch.allclose(whole, unpruned, atol=1e-3)


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_padded_source(beams):
    model, source = selattn.make_selective(tiny(eos_token_id=None)), tokens(2, 15)
    mask = torch.ones_like(source)
    mask[1, 9:] = 0
    how = {"max_new_tokens": 10, "do_sample": False, "num_beams": beams, "cache_budgets": 5}
    both = model.generate(source, attention_mask=mask, **how)
    alone = model.generate(source[1:, :9], **how)
    assert torch.equal(both[1], alone[0])
    if beams == 1:
        with torch.no_grad():
            told = model(
                input_ids=source, attention_mask=mask, decoder_input_ids=both, use_cache=False, cache_budgets=5
            )
        assert torch.equal(told.logits[:, :-1].argmax(-1), both[:, 1:])


def test_the_loss_is_that_of_labels_and_the_memory_term_joins_it():
    model, source, labels = tiny(), tokens(2, 15), tokens(2, 20, seed=3)
    labels[1, 12:] = -100
    real = (labels != -100).long()
    selattn.make_selective(model, memory_epsilon=0.1)
    result = model(input_ids=source, labels=labels, decoder_attention_mask=real)
    logits = result.logits[labels != -100].log_softmax(-1)
    assert_close(result.lm_loss, -logits.gather(-1, labels[labels != -100][:, None]).mean())
    assert_close(result.loss, result.lm_loss + result.memory_loss)
    result.loss.backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not silent
    # Two micro batches of a step weigh as their labels do.
    whole = model(input_ids=source, labels=labels, decoder_attention_mask=real).lm_loss
    parts = [
        model(input_ids=source[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=torch.tensor(32)).lm_loss
        for i in range(2)
    ]
    assert_close(sum(parts), whole)


def test_saved_and_loaded(tmp_path):
    model, source, target = selattn.make_selective(tiny(), selection="new"), tokens(1, 15), tokens(1, 20, seed=3)
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    given = {"input_ids": source, "decoder_input_ids": target}
    with torch.no_grad():
        assert torch.equal(again(**given).logits, model(**given).logits)


def test_a_plain_cache_is_refused():
    model, source, target = selattn.make_selective(tiny()), tokens(1, 15), tokens(1, 5, seed=3)
    stock = tiny()(input_ids=source, decoder_input_ids=target, use_cache=True).past_key_values
    with pytest.raises(SelattnError, match="does not keep F"):
        model(input_ids=source, decoder_input_ids=target, past_key_values=stock)
