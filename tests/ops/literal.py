"""Two forms of selective attention that share no code with the package: what the tests hold it to.

`pseudo_code` is figure 2 of the paper, line by line. `definition` is the formulas of the paper and of docs, element by
element, in Python lists and floats, with every switch. Both are slow and plain on purpose: do not improve them.
"""

from math import exp, inf, isfinite, nan, sqrt, tanh
from typing import NamedTuple

import torch
from torch import einsum, eye, relu, roll, softmax, where


def pseudo_code(Q, K, V, f_dtype=None):
    """Figure 2: the output and F. `f_dtype` is that of the running sum, by default the inputs'."""
    n, dk = Q.shape[-2:]
    causal_mask = torch.ones(n, n, dtype=torch.bool).tril()

    attn_logits = einsum("bhnd,bhmd->bhnm", Q, K) / sqrt(dk)
    attn_logits = where(causal_mask, attn_logits, float("-inf"))
    S = attn_logits[:, 0]  # Select head 0.
    S = relu(S).clone()  # Only positive selection. (A copy, or autograd refuses the next line.)
    S[..., 0] = 0  # Do not mask <BOS>.
    S = (1 - eye(n, dtype=S.dtype)) * S  # Do not mask self.
    S = roll(S, 1, -2); S[..., 0, :] = 0  # Mask strictly in the future.  # noqa: E702  # fmt: skip
    F = torch.cumsum(S, axis=-2, dtype=f_dtype)  # Accumulate.
    attn_logits -= F[:, None]
    attn_weights = softmax(attn_logits, -1)

    return attn_weights @ V, F


class Defined(NamedTuple):
    """The names are those of `selattn.ops.Attention`."""

    output: torch.Tensor
    f: torch.Tensor
    memory: torch.Tensor
    final_f: torch.Tensor
    weights: torch.Tensor


def definition(
    query,
    key,
    value,
    *,
    documents=None,
    scale=None,
    bias=None,
    mask=None,
    softcap=None,
    window=None,
    until=None,
    heads=(0,),
    selection_query=None,
    selection_key=None,
    relu=True,
    protect_first=True,
    protect_self=True,
    shift=True,
    strength=1.0,
    initial_f=None,
    tau=1.0,
):
    """Every element by its definition.

    The arguments are tensors and numbers as the operator takes them, except: documents [B][M] is the id of each token's
    document, unique in its row, None for padding; bias and mask are full [B, H, N, M]; until is full [B, G, M];
    `heads` are the selecting heads, one for each group of heads.
    """
    (B, H, N, D), (G, M) = query.shape, key.shape[1:3]
    q, k = query.tolist(), key.tolist()
    separate = selection_query is not None
    masks = selection_query.shape[1] if separate else len(heads)
    scale = 1 / sqrt(D) if scale is None else scale
    documents = documents or [[0] * M] * B
    bias, mask, until, initial_f = (None if x is None else x.tolist() for x in (bias, mask, until, initial_f))
    sq, sk = (None if x is None else x.tolist() for x in (selection_query, selection_key))
    past = M - N  # row i of the matrix is position past + i of the sequence

    def sees(b, h, i, j):
        p = past + i
        return (
            j <= p
            and documents[b][j] is not None
            and documents[b][j] == documents[b][p]
            and (window is None or sum(d is not None for d in documents[b][j:p]) < window)
            and (until is None or p < until[b][h * G // H][j])
            and (mask is None or mask[b][h][i][j])
            and (bias is None or bias[b][h][i][j] != -inf)
        )

    def logit(b, h, i, j):
        x = scale * dot(q[b][h][i], k[b][h * G // H][j])
        x = x if softcap is None else softcap * tanh(x / softcap)
        return x if bias is None else x + bias[b][h][i][j]

    def selecting_sees(b, s, i, j):
        each = H // masks
        return any(sees(b, h, i, j) for h in range(s * each, (s + 1) * each)) if separate else sees(b, heads[s], i, j)

    def selects(b, s, i, j):  # S[i, j]
        if not selecting_sees(b, s, i, j):
            return 0.0
        if protect_self and past + i == j:
            return 0.0
        if protect_first and documents[b].index(documents[b][j]) == j:
            return 0.0
        x = dot(sq[b][s][i], sk[b][s][j]) / sqrt(len(sq[b][s][i])) if separate else logit(b, heads[s], i, j)
        return strength * (max(x, 0.0) if relu else x)

    output, weights, memory = (torch.zeros(B, X, N, Y).double() for X, Y in ((H, value.shape[3]), (H, M), (masks, 1)))
    f, after = torch.zeros(B, masks, N, M).double(), torch.zeros(B, masks, M).double()
    for b in range(B):
        for s in range(masks):
            S = [[selects(b, s, i, j) for j in range(M)] for i in range(N)]
            for j in range(M):
                before = 0.0 if initial_f is None or j >= past else initial_f[b][s][j]
                after[b, s, j] = before + sum(S[n][j] for n in range(N))
                for i in range(N):
                    f[b, s, i, j] = before + sum(S[n][j] for n in range(i if shift else i + 1))
            for i in range(N):
                seen = [f[b, s, i, j].item() for j in range(M) if selecting_sees(b, s, i, j)]
                memory[b, s, i] = len(seen) - sum(min(x, tau) for x in seen) / tau
        for h in range(H):
            for i in range(N):
                seen = [j for j in range(M) if sees(b, h, i, j)]
                logits = [logit(b, h, i, j) - f[b, h * masks // H, i, j].item() for j in seen]
                top = max((x for x in logits if isfinite(x)), default=0.0)  # so that exp does not overflow
                total = sum(exp(x - top) for x in logits)
                for j, x in zip(seen, logits, strict=True):
                    share = exp(x - top) / total if total else nan  # 0 / 0: all logits are -inf
                    weights[b, h, i, j] = share
                    output[b, h, i] += share * value[b, h * G // H, j]
    return Defined(output, f, memory.squeeze(-1), after, weights)


def child_et_al(pattern, head, heads, i):
    """Child et al. (2019), section 4.3: the set of positions that position i attends to in this head."""
    l = pattern.stride
    if pattern.kind == "strided":
        A1 = set(range(max(0, i - l), i + 1))
        A2 = {j for j in range(i + 1) if (i - j) % l == 0}
    else:
        t = l - pattern.summary
        A1 = {j for j in range(i + 1) if j // l == i // l}
        A2 = {j for j in range(i + 1) if j % l in range(t, l + 1)}
    split = A1 if head < (heads + 1) // 2 else A2
    return {"merged": A1 | A2, "split": split, "first": A1, "second": A2}[pattern.combine]


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))
