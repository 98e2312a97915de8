"""A pruned cache as the papers describe it: one token at a time, in lists, dicts and floats.

Nothing here comes from the package. It is slow and plain on purpose: do not improve it.

section 4 of the paper   "when processing the first K tokens we drop nothing, and for each following token we drop the
                         single not-yet-dropped past token with the highest F value"
H2O, Zhang et al. 2023   each head on its own drops the token with the lowest attention accumulated over all queries;
                         half of the budget is for these heavy hitters, half for the most recent tokens
TOVA, Oren et al. 2024   drops the token with the lowest attention of the last query, averaged over the heads
Window+4, Oren et al.    the first 4 tokens and the most recent
...-per-head             the same, each key-value head on its own: by the F that its heads follow, or by their attention
"""

from math import exp, inf, sqrt, tanh
from typing import NamedTuple

import torch

from tests.ops.literal import child_et_al, dot


class Run(NamedTuple):
    """What some way of running a case did."""

    kept: list  # [B][N] for each order, the positions that a token attended to, itself included; None for padding
    output: torch.Tensor  # [B, H, N, Dv]


def simulate(tokens, rules, budget, policy, documents):
    """Every sequence of the batch alone: documents [B][N] is the id of each token's document, None for padding."""
    B, H, N, _ = tokens.query.shape
    kept = [[None] * N for _ in range(B)]
    output = torch.zeros(B, H, N, tokens.value.shape[3], dtype=torch.float64)
    for b in range(B):
        for document in {d for d in documents[b] if d is not None}:
            columns = [j for j in range(N) if documents[b][j] == document]
            q, k, v, sq, sk = (
                None if x is None else x[b][:, columns].tolist()
                for x in (*tokens[:3], tokens.selection_query, tokens.selection_key)
            )
            for t, (held, mixed) in enumerate(sequence(q, k, v, sq, sk, rules, budget, policy)):
                kept[b][columns[t]] = held
                output[b, :, columns[t]] = torch.tensor(mixed, dtype=torch.float64)
    return Run(kept, output)


def sequence(q, k, v, sq, sk, rules, budget, policy):
    """One sequence, [head][token][number]; for each token what was kept, [order][...], and its output, [head][...]."""
    H, G = len(q), len(k)
    scale = 1 / sqrt(len(q[0][0])) if rules.scale is None else rules.scale
    selects = rules.selection
    masks = 0 if selects is None else len(selects.heads) if sq is None else len(sq)
    orders = G if policy == "h2o" or policy.endswith("-per-head") else 1
    policy = policy.removesuffix("-per-head")
    kept = [[] for _ in range(orders)]
    attention = [{} for _ in range(orders)]  # of each token: accumulated (H2O), or by the last query (TOVA)
    F = [{} for _ in range(masks)]
    at = torch.arange(len(q[0]))[None]
    bias = [[[0.0] * len(q[0])] * len(q[0])] if rules.bias is None else rules.bias(at, at)[0].tolist()  # [1 or H][N][N]

    for i in range(len(q[0])):
        for p in range(orders):
            if len(kept[p]) == budget:
                followed = {h * masks // H for h in range(H) if masks and h * orders // H == p}
                masked = {j: min((F[s][j] for s in followed), default=0.0) for j in kept[p]}
                kept[p].remove(who_leaves(policy, kept[p], budget, masked, attention[p]))
            kept[p].append(i)

        def logit(h, j, i=i):
            x = scale * dot(q[h][i], k[h * G // H][j])
            x = x if rules.softcap is None else rules.softcap * tanh(x / rules.softcap)
            return x + bias[h % len(bias)][i][j]

        sees = [
            [j for j in kept[h * orders // H] if shows(rules, h, H, i, j) and bias[h % len(bias)][i][j] != -inf]
            for h in range(H)
        ]
        S = [{} for _ in range(masks)]
        for s in range(masks):
            F[s][i] = 0.0
            following = [sees[h] for h in range(H) if h * masks // H == s]
            for j in {j for row in following for j in row} if sq else sees[selects.heads[s]]:
                if (selects.protect_self and j == i) or (selects.protect_first and j == 0):
                    continue
                x = dot(sq[s][i], sk[s][j]) / sqrt(len(sq[s][i])) if sq else logit(selects.heads[s], j)
                S[s][j] = float(rules.strength) * (max(x, 0.0) if selects.relu else x)
        if masks and not selects.shift:
            select(F, S)

        weights = []
        for h in range(H):
            masked = {j: F[h * masks // H][j] if masks else 0.0 for j in sees[h]}
            unscaled = {j: exp(logit(h, j) - masked[j]) for j in sees[h]}
            weights.append({j: x / sum(unscaled.values()) for j, x in unscaled.items()})
        if masks and selects.shift:
            select(F, S)

        for p in range(orders):
            mine = [weights[h] for h in range(H) if h * orders // H == p]
            mean = {j: sum(row.get(j, 0.0) for row in mine) / len(mine) for j in kept[p]}
            attention[p] = {j: mean[j] + attention[p].get(j, 0.0) if policy == "h2o" else mean[j] for j in kept[p]}

        mixed = [
            [sum(w * v[h * G // H][j][d] for j, w in weights[h].items()) for d in range(len(v[0][0]))] for h in range(H)
        ]
        yield [list(held) for held in kept], mixed


def select(F, S):
    """F = F + S."""
    for s in range(len(F)):
        for j, x in S[s].items():
            F[s][j] += x


def shows(rules, h, heads, i, j):
    """Whether a window or pattern shows token j to query i."""
    in_window = rules.window is None or i - j < rules.window
    return in_window and (rules.pattern is None or j in child_et_al(rules.pattern, h, heads, i))


def who_leaves(policy, kept, budget, masked, attention):
    """One of `kept`, which are in the order of their positions: the coming token is not yet among them."""
    if policy == "selective":
        return worst(kept, masked)
    if policy == "h2o":
        recent = budget // 2  # the coming token is the most recent of them
        return worst(kept[: len(kept) - (recent - 1)], {j: -attention[j] for j in kept})
    if policy == "tova":
        return worst(kept, {j: -attention[j] for j in kept})
    if policy == "window+4":
        return next(j for j in kept if j >= min(4, budget - 1))
    assert policy == "window"
    return kept[0]


def worst(candidates, badness):
    """The worst of them; of equals not the first token of the sequence, then the oldest."""
    most = max(badness[j] for j in candidates)
    equal = [j for j in candidates if badness[j] == most]
    return min(equal, key=lambda j: (j == 0, j))
