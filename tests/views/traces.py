"""Small traces whose numbers are known, without a model."""

import numpy as np

from selattn.evaluation.traces import Trace, pack_rising, pack_shares, pack_steps


def random_trace(size=12, layers=3, seed=0, tokens=None, selective=True, step=1 / 32, runs=True, model="toy"):
    """F that rises down its columns, weights that add up to 1, and one run with budgets for each of two policies."""
    rng = np.random.default_rng(seed)
    packed = []
    for _ in range(layers):
        S = np.tril(np.maximum(rng.normal(0, 1.5, (size, size)), 0), -1)
        S[:, 0] = 0
        F = np.tril(np.concatenate([np.zeros((1, size)), S.cumsum(0)[:-1]]))
        weights = np.tril(rng.random((size, size)))
        weights /= weights.sum(1, keepdims=True)
        packed.append({"f": pack_rising(F, step) if selective else None, "weights": pack_shares(weights)})
    done = []
    for policy, budget in (("selective", 4), ("window", 3)) if runs else ():
        at = np.full((layers, size), size)
        for layer in range(layers):
            leaving = rng.permutation(np.arange(1, size))[: max(size - budget, 0)]
            at[layer, np.sort(leaving)] = np.minimum(np.sort(leaving) + budget, size)
        done.append({"policy": policy, "budgets": [budget] * layers, "per_head": False, "evicted_at": pack_steps(at)})
    return Trace(
        model=model,
        tokens=tokens or ["<s>", *(f" w{i}" for i in range(1, size))],
        ids=list(range(size)),
        kinds=["selective" if selective else "standard"] * layers,
        shift=True,
        cut_from=size,
        packed=packed,
        runs=done,
    )
