"""The operator, in the conventions of `torch.nn.functional.scaled_dot_product_attention`.

selective_attention   softmax(Q K^T / sqrt(d) - F) V, the paper's mechanism
causal_attention      the baselines that the paper trains: standard, local window, strided and fixed sparse
attend_whole          both, by the rules of a layer, as models call it
"""

from __future__ import annotations

import math
from typing import TypedDict, Unpack, overload

import torch
from torch import Tensor

from selattn.ops import checks
from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.request import NOTHING, Attention, AuxOutput, AuxRequest, Request, Tokens
from selattn.ops.rules import Pattern, Rules, compute_dtype, position_bias
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences

DEFAULT_SELECTION = Selection()


class KernelOptions(TypedDict, total=False):
    """How a backend may compute.

    Attributes:
        tolerance: the attention mass that a row may lose to columns that are left out because they are masked for good.
            The default, 2^-24, is below fp32's rounding; 0 leaves nothing out. Only "cpu" and "triton" leave any out.
            The values that a row loses also add up to no more than that share of the smallest one (but 0).
    """

    tolerance: float


class _Common(TypedDict, total=False):
    """The options of both operators that `scaled_dot_product_attention` does not have."""

    sequences: Sequences | None
    window: int | None
    softcap: float | None
    visible_until: Tensor | None
    kernel_options: KernelOptions | None
    backend: str | Backend


class _Selective(_Common, total=False):
    selection: Selection
    selection_query: Tensor | None
    selection_key: Tensor | None
    strength: float | Tensor
    initial_f: Tensor | None
    tau: float


class _Causal(_Common, total=False):
    pattern: Pattern | None


@overload
def selective_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_aux: None = None,
    **options: Unpack[_Selective],
) -> Tensor: ...
@overload
def selective_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_aux: AuxRequest,
    **options: Unpack[_Selective],
) -> tuple[Tensor, AuxOutput]: ...


def selective_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    selection: Selection = DEFAULT_SELECTION,
    selection_query: Tensor | None = None,
    selection_key: Tensor | None = None,
    strength: float | Tensor = 1.0,
    sequences: Sequences | None = None,
    window: int | None = None,
    softcap: float | None = None,
    visible_until: Tensor | None = None,
    initial_f: Tensor | None = None,
    tau: float = 1.0,
    return_aux: AuxRequest | None = None,
    kernel_options: KernelOptions | None = None,
    backend: str | Backend = "auto",
) -> Tensor | tuple[Tensor, AuxOutput]:
    """Selective attention: softmax(scale Q K^T - F) V with F[i, j] = sum over j < k < i of relu(head 0's logit[k, j]).

    The first eight arguments are those of `scaled_dot_product_attention`, with three differences: attention is always
    causal; when there are fewer queries than keys, the queries are the last rows (not the first); and a row that sees
    nothing gives zeros.

    Args:
        query: [B, H, N, D].
        key: [B, G, M, D] with M >= N; G = H, or a divisor of H with `enable_gqa`.
        value: [B, G, M, Dv].
        attn_mask: broadcastable to [B, H, N, M]. Bool: true where attention is allowed; one that is the same for all
            rows and heads ([B, 1, 1, M]) is taken for a padding mask, like `Sequences.from_mask`. Floating point: added
            to the logits after scale and soft cap, so that S contains it; differentiable.
        dropout_p: probability that an attention weight is dropped. S and F are not affected.
        is_causal: must be true; selection has no meaning for queries that come before the key.
        scale: the factor of Q K^T, by default 1 / sqrt(D).
        enable_gqa: allow fewer key-value heads than query heads; query head h uses key-value head h // (H / G).
        selection: which head selects, the constraints and the shift. See `Selection`.
        selection_query: [B, S, N, Ds], with `selection_key` a separate bilinear form for S (the paper's appendix)
            instead of a head; its logits are scaled by 1 / sqrt(Ds).
        selection_key: [B, S, M, Ds].
        strength: in [0, 1], multiplies S. A 0-d tensor is not differentiated, and can change without recompilation.
        sequences: padding and packed documents. See `Sequences`; the default is one sequence of M tokens in each row.
        window: a query sees the last `window` tokens of its sequence only, its own included; padding is not counted.
        softcap: logits become softcap * tanh(logits / softcap); infinity is no cap.
        visible_until: integers [B, M] or [B, 1 or G, M]: key j is seen by row i only if i < visible_until[..., j]. Rows
            are counted in key positions. This is what pruning is; `selattn.eviction_order` makes it.
        initial_f: [B, S, M - N], F with which the first query begins: what the queries before it have selected
            (`final_f` of an earlier call). Required when N < M: without it, everything that was masked would be seen
            again.
        tau: the clamp of the memory M_i.
        return_aux: what to return with the output. See `AuxRequest` and `AuxOutput`.
        kernel_options: how to compute it. See `KernelOptions`.
        backend: "auto", a name from `selattn.ops.backends()`, or a `selattn.ops.Backend` of your own.

    Returns:
        The output [B, H, N, Dv]; with `return_aux`, the output and an `AuxOutput`. All of it has gradients with respect
        to query, key, value, a floating point attn_mask, the separate form and initial_f.
    """
    checks.kinds(selection=selection, strength=strength, tau=tau)
    rules = Rules(selection, strength, window, None, scale, softcap, dropout_p, tau)
    return _attend(
        *(query, key, value, rules, attn_mask, is_causal, enable_gqa, sequences, visible_until),
        *(return_aux, kernel_options, backend, selection_query, selection_key, initial_f),
    )


@overload
def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_aux: None = None,
    **options: Unpack[_Causal],
) -> Tensor: ...
@overload
def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_aux: AuxRequest,
    **options: Unpack[_Causal],
) -> tuple[Tensor, AuxOutput]: ...


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    sequences: Sequences | None = None,
    window: int | None = None,
    pattern: Pattern | None = None,
    softcap: float | None = None,
    visible_until: Tensor | None = None,
    return_aux: AuxRequest | None = None,
    kernel_options: KernelOptions | None = None,
    backend: str | Backend = "auto",
) -> Tensor | tuple[Tensor, AuxOutput]:
    """Attention with no F: standard causal, a local window, or a sparse pattern. Arguments as in `selective_attention`.

    `pattern` is a `Strided` or `Fixed` of Child et al. (2019); positions are counted inside each sequence.
    """
    checks.optional(pattern=pattern)
    rules = Rules(None, 1.0, window, pattern, scale, softcap, dropout_p)
    return _attend(
        *(query, key, value, rules, attn_mask, is_causal, enable_gqa, sequences, visible_until),
        *(return_aux, kernel_options, backend),
    )


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rules: Rules,
    attn_mask: Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
    sequences: Sequences | None,
    visible_until: Tensor | None,
    return_aux: AuxRequest | None,
    kernel_options: KernelOptions | None,
    backend: str | Backend,
    selection_query: Tensor | None = None,
    selection_key: Tensor | None = None,
    initial_f: Tensor | None = None,
) -> Tensor | tuple[Tensor, AuxOutput]:
    """Check the arguments of either operator, make a `Request` of them and run it."""
    checks.kinds(
        query=query, key=key, value=value, is_causal=is_causal, dropout_p=rules.dropout_p, enable_gqa=enable_gqa
    )
    checks.optional(
        scale=rules.scale,
        softcap=rules.softcap,
        window=rules.window,
        attn_mask=attn_mask,
        sequences=sequences,
        visible_until=visible_until,
        selection_query=selection_query,
        selection_key=selection_key,
        initial_f=initial_f,
    )
    if not is_causal:
        raise checks.error("attention is causal here: leave is_causal at True")
    query, key, value, selection_query, selection_key = dispatch.cast(query, key, value, selection_query, selection_key)
    checks.tensors(query, key, value, enable_gqa)
    checks.places(
        query,
        attn_mask=attn_mask,
        sequences=None if sequences is None else sequences.start,
        visible_until=visible_until,
        selection_query=selection_query,
        selection_key=selection_key,
        initial_f=initial_f,
    )
    checks.numbers(rules.dropout_p, rules.scale, rules.softcap, rules.window, rules.tau)
    if rules.selection is not None:
        checks.selection(query, key, rules.selection, selection_query, selection_key)
        checks.strength(rules.strength)
    mask, bias = None, None
    if attn_mask is not None:
        full = checks.attn_mask(attn_mask, query, key)
        if full.dtype != torch.bool:
            bias = full.to(compute_dtype(query.dtype))
        elif sequences is None and full.shape[1:3] == (1, 1):
            sequences = Sequences.from_mask(full[:, 0, 0].expand(query.shape[0], key.shape[2]))
        else:
            mask = full
    if visible_until is not None:
        checks.visible_until(visible_until, key)
        visible_until = visible_until if visible_until.ndim == 3 else visible_until.unsqueeze(1)
    if sequences is not None:
        checks.sequences(sequences, key)
    if rules.softcap == math.inf:  # a cap that nothing reaches
        rules = rules._replace(softcap=None)
    if kernel_options is not None:
        checks.kernel_options(kernel_options, KernelOptions.__annotations__)
        rules = rules._replace(**kernel_options)
    if return_aux is not None:
        checks.aux_request(return_aux, rules)
    start = None if sequences is None else sequences.start
    request = Request(
        *(query, key, value, rules, return_aux or NOTHING, start, visible_until, mask, bias),
        *(selection_query, selection_key),
    )
    if rules.selection is not None and checks.initial_f(initial_f, request):
        assert initial_f is not None
        # F over all M keys: the new ones have not been selected yet.
        whole = torch.nn.functional.pad(initial_f.to(compute_dtype(query.dtype)), (0, query.shape[-2]))
        request = request._replace(initial_f=whole)
    output, aux, _ = dispatch.attend(request, backend)
    return output if return_aux is None else (output, aux)


def attend_whole(
    tokens: Tokens,
    sequences: Sequences | None,
    rules: Rules,
    wanted: AuxRequest = NOTHING,
    backend: str | Backend = "auto",
    evicted_at: Tensor | None = None,
) -> Attention:
    """Whole sequences attend to themselves by the rules of a layer: what every forward without a cache does.

    `evicted_at` [B, P, N] prunes: the row from which each key is gone, as `selattn.eviction_order` gives it. What is
    real is told by `sequences`, not by the tokens.
    """
    bias = None
    if rules.bias is not None:
        index = torch.arange(tokens.key.shape[2], device=tokens.key.device)
        bias = position_bias(rules, tokens.query, index[None] if sequences is None else sequences.positions)
    request = Request(
        tokens.query,
        tokens.key,
        tokens.value,
        rules if rules.bias is None else rules._replace(bias=None),
        wanted,
        start=None if sequences is None else sequences.start,
        until=evicted_at,
        bias=bias,
        selection_query=tokens.selection_query,
        selection_key=tokens.selection_key,
    )
    return dispatch.attend(request, backend)._replace(evicted_at=evicted_at)
