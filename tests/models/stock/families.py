"""A tiny random model of each family, and what selective attention is in it, written down a second time."""

import torch
from torch import nn

from selattn.models.stock.families import FAMILIES

QUICK = ("llama", "gpt2", "gemma2")  # in `make test`; the others are slow tests
SIZES = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
MORE = {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 2}
EXPERTS = ("mixtral", "qwen3_moe")
WINDOWED = ("mistral", "gemma2", "gemma3_text", "phi3", "mixtral")


def tiny(name, seed=0, **more):
    """A model of that family."""
    family = FAMILIES[name]
    options = {**SIZES, **MORE, "max_position_embeddings": 96}
    if name == "gpt2":
        options = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96, "eos_token_id": 2}
    if name == "gpt_neox":
        options = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 96, "eos_token_id": 2}
    if name == "qwen3_moe":
        options |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    if name == "gemma2":
        options |= {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 8}
    if name in WINDOWED:
        options |= {"sliding_window": 7}
    torch.manual_seed(seed)
    config = family.load(family.config, "configuration")(**{**options, **more})
    model = family.load(family.model)(config).eval()
    if name in EXPERTS:
        model.set_experts_implementation("eager")  # the only one in double precision
    with torch.no_grad():  # sharper logits, so that there is something to select
        for module in model.modules():
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
                module.weight.mul_(8.0)
    return model


def tokens(rows, length, seed=1):
    """[rows, length] ids, none of them special."""
    return torch.randint(3, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


def greedy(model, ids, count, **limits):
    """Token after token from full forwards."""
    for _ in range(count):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids, use_cache=False, **limits).logits[:, -1:].argmax(-1)], 1)
    return ids


def literal(module, query, key, value, attention_mask, scaling=None, softcap=None, strength=1.0, **kwargs):
    """The paper's sketch as an attention function of transformers: head 0 selects, the mask is transformers' own."""
    shared = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    n = logits.shape[-1]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    if attention_mask is not None:
        mask = attention_mask[..., :n]
        seen = seen & (mask if mask.dtype == torch.bool else mask == 0)
    else:
        seen = seen.expand(len(logits), 1, n, n)
    S = strength * logits[:, :1].relu().masked_fill(~seen, 0.0)
    S = S * (1 - torch.eye(n))
    first = seen.any(-2).long().argmax(-1)  # the first real token of each row: the first that anybody sees
    S = S.masked_fill(torch.arange(n) == first[..., None, None], 0.0)
    F = S.cumsum(-2).roll(1, -2)
    F[..., 0, :] = 0.0
    weights = (logits - F).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return (weights @ value).transpose(1, 2).contiguous(), weights
