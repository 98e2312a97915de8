"""Small models and texts, the search as the paper writes it, and brute force."""

import itertools

import torch

from selattn.evaluation import make_batches
from tests.models.tiny import CONTEXT, tiny, token_ids


def rows(lengths, seed=0):
    """Document rows of those lengths, padded to the context."""
    made = []
    for number, length in enumerate(lengths):
        ids = torch.full((CONTEXT,), 5)
        ids[:length] = token_ids(length, seed=seed + number)
        mask = (torch.arange(CONTEXT) < length).long()
        labels = torch.where(mask > 0, ids, -100)
        labels[0] = -100
        made.append({"input_ids": ids, "labels": labels, "attention_mask": mask})
    return made


def batches(lengths=(24, 24, 9, 24, 17), size=2, seed=0):
    return make_batches(rows(lengths, seed), size)


def loss(model, text, budgets, policy="selective"):
    """The mean loss, from the model's own forward, one row after another."""
    total = count = 0
    for row in text:
        n = int(row["attention_mask"].sum())
        ids = row["input_ids"][:n]
        with torch.no_grad():
            logits = model(ids[None], use_cache=False, cache_budgets=list(budgets), cache_policy=policy).logits[0]
        total -= logits[:-1].log_softmax(-1).gather(-1, ids[1:, None]).sum().item()
        count += n - 1
    return total / count


def literal(model, text, context, step, floor, policy="selective", start=None):
    """Section 4: K = N; in each iteration the loss of K - C_i for every i, and the argmin gives C."""
    K = list(start or [context] * model.description.layers)
    path = [(tuple(K), loss(model, text, K, policy), {})]
    while True:
        tried = {}
        for i in range(len(K)):
            if K[i] - step >= floor:
                less = list(K)
                less[i] -= step
                tried[i] = loss(model, text, less, policy)
        if not tried:
            return path
        m = min(tried, key=tried.get)
        K[m] -= step
        path.append((tuple(K), tried[m], tried))


def brute_force(model, text, context, step, floor, total):
    """The best budgets with that sum, of all there are."""
    choices = range(context - (context - floor) // step * step, context + 1, step)
    all_of_them = itertools.product(choices, repeat=model.description.layers)
    return min((loss(model, text, K), K) for K in all_of_them if sum(K) == total)[1]


def model(**changes):
    return tiny(num_hidden_layers=3, **changes)
