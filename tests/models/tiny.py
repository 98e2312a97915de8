"""Tiny models of every variant, with weights large enough that selection has an effect, and batches for them."""

import torch

from selattn.models import SelectiveConfig, SelectiveForCausalLM

VOCABULARY, CONTEXT = 31, 24
ALL_KINDS = ["local:3", "selective:4", "strided:3", "fixed:4:1", "standard", "selective"]
NO_CONSTRAINTS = {f"selection_{name}": False for name in ("relu", "protect_first", "protect_self", "shift")}

VARIANTS = {
    "paper": {},
    "rotary": {"positions": "rotary"},
    "separate": {"selection_source": "separate"},
    "separate rotary": {"selection_source": "separate", "positions": "rotary"},
    "gqa": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "extra heads": {"num_attention_heads": 5, "selection_head": 2},
    "several masks": {"num_attention_heads": 4, "selection_head": [1, 3]},
    "window": {"attention": "selective:5"},
    "all kinds": {"attention": ALL_KINDS, "num_hidden_layers": 6},
    "no constraints": NO_CONSTRAINTS,
    "half strength": {"selection_strength": 0.5},
    "gpt2": {"norm": "layernorm", "mlp": "gelu", "bias": True, "tie_word_embeddings": True, "qk_norm": False},
}


def tiny_config(**changes):
    sizes = {"hidden_size": 16, "head_dim": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    small = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "initializer_range": 0.3}
    return SelectiveConfig(**{**sizes, **small, **changes})


def tiny(dtype=torch.float64, seed=0, **changes):
    """A model in evaluation mode. Gains and biases are random too: at 1 and 0 they would hide mistakes."""
    torch.manual_seed(seed)
    model = SelectiveForCausalLM(tiny_config(**changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def token_ids(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows, side):
    """Rows of unequal length as a batch: ids with a real token's id as padding, and the mask."""
    longest = max(len(row) for row in rows)
    ids, mask = torch.full((len(rows), longest), 7), torch.zeros(len(rows), longest, dtype=torch.int64)
    for row, i, m in zip(rows, ids, mask, strict=True):
        place = slice(longest - len(row), None) if side == "left" else slice(len(row))
        i[place], m[place] = row, 1
    return ids, mask


def logits_alone(model, rows, **kwargs):
    """What each sequence gets on its own."""
    return [model(row[None], **kwargs).logits[0] for row in rows]


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
