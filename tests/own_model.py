"""A language model that is written from `selattn.models.protocols` alone: a torch module, and no class of ours but the
description. Two layers of selective attention through the public operator; its cache is the list of the texts so far,
which it reads again for every token.
"""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch import nn

from selattn import Budgets, Policy, Sequences, eviction_order, selective_attention
from selattn.models.protocols import Description, parse_kind

HEADS, WIDTH = 2, 16


class Notebook:
    """The cache: the tokens of each text."""

    def __init__(self, budgets, policy):
        self.budgets, self.policy, self.texts, self.active = budgets, policy, [], None

    @property
    def rows(self):
        return len(self.texts)

    def reserve(self, rows):
        self.texts += [[] for _ in range(rows - len(self.texts))]

    @contextmanager
    def only(self, rows):
        self.active = list(rows)
        yield
        self.active = None

    def clear_rows(self, rows):
        for row in rows:
            self.texts[row] = []

    def drafting(self):
        return nullcontext()

    def roll_back(self, counts):
        raise NotImplementedError("this model takes no drafts")

    def get_seq_length(self):
        return max(map(len, self.texts), default=0)

    def nbytes(self):
        return 8 * sum(map(len, self.texts))

    def full_nbytes(self):
        return self.nbytes()


class OwnModel(nn.Module):
    """Embeddings, two layers with a residual, and a head."""

    def __init__(self, vocabulary=40, layers=2, context=24, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.description = Description(
            kinds=(parse_kind("selective"),) * layers, vocab_size=vocabulary, context=context, heads=HEADS, ends=(1,)
        )
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.out = nn.Linear(WIDTH, vocabulary)
        self.double().eval()

    @property
    def device(self):
        return self.out.weight.device

    def new_cache(self, budgets=None, policy=None):
        return Notebook(budgets, policy)

    def forward(
        self,
        input_ids,
        *,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        use_cache=None,
        logits_to_keep=0,
        cache_budgets=None,
        cache_policy=None,
    ):
        if past_key_values is not None:
            return SimpleNamespace(logits=self.continued(past_key_values, input_ids, attention_mask, logits_to_keep))
        sequences = None
        if position_ids is not None:
            sequences = Sequences.from_position_ids(position_ids)
        elif attention_mask is not None:
            sequences = Sequences.from_mask(attention_mask)
        logits = self.whole(input_ids, sequences, cache_budgets, cache_policy or "selective")
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])

    def whole(self, ids, sequences, budgets, policy: str | Policy):
        """Whole rows with budgets in force."""
        limits = [None] * len(self.layers) if budgets is None else Budgets.of(budgets).for_layers(len(self.layers))
        x = self.embed(ids)
        for layer, budget in zip(self.layers, limits, strict=True):
            q, k, v = layer(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            gone = eviction_order(q, k, budget=budget, policy=policy, sequences=sequences)
            x = x + selective_attention(q, k, v, sequences=sequences, visible_until=gone).transpose(1, 2).flatten(2)
        return self.out(x.tanh())

    def continued(self, cache, ids, mask, last):
        """Each text of the batch with its new tokens."""
        cache.texts = cache.texts or [[] for _ in ids]
        found = torch.zeros(*ids.shape, self.description.vocab_size, dtype=torch.float64)
        for at, row in enumerate(range(len(ids)) if cache.active is None else cache.active):
            real = slice(None) if mask is None else mask[at].bool()
            cache.texts[row] += ids[at][real].tolist()
            logits = self.whole(torch.tensor([cache.texts[row]]), None, cache.budgets, cache.policy or "selective")[0]
            found[at][real] = logits[-len(found[at][real]) :]
        return found[:, -last:]
