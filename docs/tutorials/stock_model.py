# %% [markdown]
# # A stock model with less memory
#
# `selattn.evicting` makes a model of transformers keep a limited number of tokens in each layer, while it generates
# and while it reads. The model needs no training and stays what it is. What is evicted is forgotten, so this tutorial
# also measures what that costs.

# %%
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import selattn

# %% [markdown]
# ## A model
#
# With a network you would take one from the hub:
#
# ```python
# from transformers import AutoModelForCausalLM, AutoTokenizer
#
# name = "HuggingFaceTB/SmolLM2-135M"
# model = AutoModelForCausalLM.from_pretrained(name)
# tokenizer = AutoTokenizer.from_pretrained(name)
# ```
#
# So that the tutorial runs without one, we copy the weights of a small model that comes with selattn into a Qwen 3 of
# transformers, which has the same architecture. It was trained on a little Wikipedia: it knows words, not facts.

# %%
small, tokenizer = selattn.load("zoo:standard")
ours = small.config
sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
config = Qwen3Config(
    **{name: getattr(ours, name) for name in sizes},
    num_key_value_heads=ours.num_key_value_heads,
    max_position_embeddings=ours.max_position_embeddings,
    tie_word_embeddings=True,
    bos_token_id=ours.bos_token_id,
    eos_token_id=ours.eos_token_id,
)
model = Qwen3ForCausalLM(config).eval()
model.generation_config.pad_token_id = ours.pad_token_id
renamed = {
    "attention.": "self_attn.",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}
weights = small.state_dict()
for old, new in renamed.items():
    weights = {name.replace(f".{old}", f".{new}"): weight for name, weight in weights.items()}
model.load_state_dict(weights)

# %% [markdown]
# ## Writing with at most 32 tokens
#
# Inside the `with` block each layer keeps at most 32 tokens. Which ones is the policy's choice: TOVA evicts the token
# that the newest one attends to least. Outside of the block nothing has changed.

# %%
text = """The city lies on both banks of the river, at the foot of a range of low hills. It was founded by traders who \
crossed the river here, and for a long time it was known for its market. In the following century a wall was built \
around it, and a stone bridge took the place of the ferry. After the war most of the wall was removed, and the railway \
brought new industry, among it paper mills and a large brewery. The population of the city grew from a few thousand to \
more than a hundred thousand. Today the university is the largest employer of the region. The old town, with the \
cathedral, the town hall and the houses of the traders, is visited by many people every year. In the north of it"""
prompt = tokenizer(text, return_tensors="pt")
writing = {"max_new_tokens": 60, "do_sample": False, "return_dict_in_generate": True}


def kilobytes(cache) -> float:
    """Of the keys and values that a cache holds."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) / 1024


whole = model.generate(**prompt, **writing)
with selattn.evicting(model, budgets=32, policy="tova"):
    less = model.generate(**prompt, **writing)

for name, out in (("everything kept", whole), ("32 tokens kept", less)):
    written = tokenizer.decode(out.sequences[0, prompt.input_ids.shape[1] :])
    print(f"{name}, {out.sequences.shape[1]} tokens, {kilobytes(out.past_key_values):.0f} KiB:\n  {written}\n")

# %% [markdown]
# ## What it costs
#
# In a full forward the block means the same: each token sees what it would have seen in generation. So the loss of a
# text tells what a policy and a budget cost. A budget can also be a list, with a number for each layer.


# %%
@torch.no_grad()
def loss(budgets=None, policy="tova") -> float:
    """Nats per token of the text."""
    ids = prompt.input_ids
    if budgets is None:
        return model(ids, labels=ids).loss.item()
    with selattn.evicting(model, budgets=budgets, policy=policy):
        return model(ids, labels=ids).loss.item()


print(f"everything kept: {loss():.3f}")
print("tokens kept      tova     h2o  window+4")
for budget in (128, 64, 32, 16, 8):
    print(f"{budget:11}" + "".join(f"{loss(budget, policy):9.3f}" for policy in ("tova", "h2o", "window+4")))
print(f"8, 8 and 64 in the last layer, h2o: {loss([8, 8, 64], 'h2o'):.3f}")

# %% [markdown]
# A few tokens are enough for this text, because the model is small and reads little of what is far away. That is no
# promise for your model: a low loss can hide that a name or a number from far back is gone. Ask for such facts, too,
# before you rely on a budget. [Stock models](../stock.md#what-eviction-costs) has measurements with SmolLM2 and a
# passkey test.
#
# ## A policy of your own
#
# A policy is a class with one function: the kept token with the highest rank is evicted.


# %%
class EveryOther(selattn.Policy):
    """Evict odd positions first, the oldest of them before the others."""

    needs_f = False

    def rank(self, kept):
        return (kept.position % 2) * 1e6 - kept.position.float()


print(f"32 tokens kept by this policy: {loss(32, EveryOther()):.3f}")

# %% [markdown]
# A model that was trained with selective attention chooses better what to evict. [Training](../training.md) makes one
# from scratch, and [conversion](../conversion.md) turns a stock model into one.
