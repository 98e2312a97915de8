# %% [markdown]
# # Your own transformer
#
# In this tutorial you take a plain PyTorch transformer, replace one call, and train it for a few seconds. Then you
# limit how many tokens its layers may keep.
#
# The task: variables get new values again and again, and at the end one of them is asked for. Only its latest value
# counts, so most of what the model has read is useless. A model that can mask tokens has something to gain here.

# %%
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import selattn

torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more

VARIABLES, VALUES, ASSIGNMENTS = 3, 20, 12
BOS = VARIABLES + VALUES  # every row begins with it


def samples(count: int) -> tuple[Tensor, Tensor]:
    """Rows like `<BOS> a 7 c 2 a 5 ... a`, and the latest value of the variable at the end."""
    names = torch.randint(VARIABLES, (count, ASSIGNMENTS))
    names[:, :VARIABLES] = torch.arange(VARIABLES)  # every variable has a value
    values = torch.randint(VALUES, (count, ASSIGNMENTS))
    asked = torch.randint(VARIABLES, (count, 1))
    latest = ASSIGNMENTS - 1 - (names == asked).flip(1).int().argmax(1)
    pairs = torch.stack([names, values + VARIABLES], dim=2).flatten(1)
    rows = torch.cat([torch.full((count, 1), BOS), pairs, asked], dim=1)
    return rows, values[torch.arange(count), latest]


rows, answers = samples(2)
print(rows[0].tolist(), "->", answers[0].item())

# %% [markdown]
# ## The model
#
# Nothing here is special. `attend` is the one place where attention is computed: it is PyTorch's
# `scaled_dot_product_attention` or `selattn.selective_attention`, which takes the same arguments and adds no
# parameters. One extra line serves the budgets, which we need later.


# %%
class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.selective, self.budget, self.policy = True, None, "selective"

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.selective:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.budget is None:
            return selattn.selective_attention(q, k, v)
        # For each token the row from which it is gone.
        gone = selattn.eviction_order(q, k, budget=self.budget, policy=self.policy)
        return selattn.selective_attention(q, k, v, visible_until=gone)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(wide, nn.GELU(), narrow)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, selective: bool, width: int = 64, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BOS + 1, width)
        self.positions = nn.Embedding(2 * ASSIGNMENTS + 2, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VALUES)
        for block in self.blocks:
            block.attention.selective = selective

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, -1])


# %% [markdown]
# ## Training
#
# Both kinds of attention get the same 150 steps, with the same weights at the beginning.


# %%
def train(model: Transformer, steps: int = 150) -> None:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    for step in range(1, steps + 1):
        rows, answers = samples(64)
        loss = F.cross_entropy(model(rows), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step:3}: loss {loss.item():.3f}")


@torch.no_grad()
def accuracy(model: Transformer) -> float:
    torch.manual_seed(2)
    rows, answers = samples(1000)
    return (model(rows).argmax(1) == answers).float().mean().item()


models = {}
for name in ("standard", "selective"):
    torch.manual_seed(1)
    models[name] = Transformer(selective=name == "selective")
    print(name)
    train(models[name])
    print(f"{accuracy(models[name]):.1%} right\n")

# %% [markdown]
# Selective attention finds the solution earlier: once a variable has a new value, its old one can be masked, and the
# question is left with one value to read. Standard attention learns the task too, if you give it 300 steps.
#
# ## With budgets
#
# Masked tokens can be evicted to free memory. With a budget of K a layer evicts the most masked token whenever it
# would hold more than K. `eviction_order` says at which row each token goes, and `visible_until` makes the operator
# compute what a cache of this size would have given, for all rows at once. `window` evicts the oldest token instead,
# for comparison.


# %%
def with_budget(model: Transformer, budget: int | None, policy: str = "selective") -> float:
    for block in model.blocks:
        block.attention.budget, block.attention.policy = budget, policy
    return accuracy(model)


selective = models["selective"]
print(f"all {2 * ASSIGNMENTS + 2} tokens: {with_budget(selective, None):.1%}")
for budget in (16, 12, 8, 6, 4):
    masked, oldest = (with_budget(selective, budget, policy) for policy in ("selective", "window"))
    print(f"{budget:2} tokens: {masked:6.1%}, and {oldest:6.1%} if the oldest are evicted")

# %% [markdown]
# To decode token by token, give the layers a cache that evicts: `selattn.SelectiveCache`, with `selattn.cache.attend`
# as the attention function ([the cache](../cache.md#other-models)). A model of transformers needs none of this: see
# [the next tutorial](stock_model.py). All arguments of the operator are in [its guide](../operator.md).
