"""The operator, in the conventions of `torch.nn.functional.scaled_dot_product_attention`.

selective_attention   softmax(Q K^T / sqrt(d) - F) V, the paper's mechanism
causal_attention      the baselines that the paper trains: standard, local window, strided and fixed sparse
"""

from __future__ import annotations

import math
from typing import TypedDict, Unpack, overload

import torch
from torch import Tensor

from selattn.ops import autocast, checks
from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.patterns import Pattern
from selattn.ops.precision import compute_dtype
from selattn.ops.request import AuxOutput, AuxRequest, Request
from selattn.ops.rules import Rules
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences

DEFAULT_SELECTION = Selection()


class KernelOptions(TypedDict, total=False):
    """How a backend may compute, beside what.

    Attributes:
        tolerance: the attention mass that a row may lose to columns that are left out because they are masked for good.
            The default, 2^-24, is below fp32's rounding; 0 leaves nothing out. Only "cpu" and "triton" leave any out.
            The values that a row loses also add up to no more than that share of the smallest one (but 0).
    """

    tolerance: float


class _Common(TypedDict, total=False):
    """What both operators take beside the arguments of `scaled_dot_product_attention`."""

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
        return_aux: what to return beside the output. See `AuxRequest` and `AuxOutput`.
        kernel_options: how to compute it. See `KernelOptions`.
        backend: "auto", a name from `selattn.ops.backends()`, or a `selattn.ops.Backend` of your own.

    Returns:
        The output [B, H, N, Dv]; with `return_aux`, the output and an `AuxOutput`. All of it has gradients with respect
        to query, key, value, a floating point attn_mask, the separate form and initial_f.
    """
    checks.kinds(
        selection=selection, strength=strength, tau=tau, query=query, key=key, value=value, is_causal=is_causal
    )
    checks.optional(selection_query=selection_query, selection_key=selection_key, initial_f=initial_f)
    if not is_causal:
        raise checks.error("selective attention is causal: leave is_causal at True")
    query, key, value, selection_query, selection_key = autocast.cast(query, key, value, selection_query, selection_key)
    rules = Rules(
        selection=selection,
        strength=strength,
        window=window,
        scale=scale,
        softcap=softcap,
        dropout_p=dropout_p,
        tau=tau,
    )
    request = _request(query, key, value, rules, attn_mask, enable_gqa, sequences, visible_until, kernel_options)
    checks.places(query, selection_query=selection_query, selection_key=selection_key, initial_f=initial_f)
    checks.selection(query, key, selection, selection_query, selection_key)
    checks.positive("tau", tau)
    checks.strength(strength)
    if selection_query is not None:
        request = request._replace(selection_query=selection_query, selection_key=selection_key)
    if (before := _initial_f(request, initial_f)) is not None:
        request = request._replace(initial_f=before)
    return _run(request, return_aux, backend)


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
    checks.kinds(query=query, key=key, value=value, is_causal=is_causal)
    if not is_causal:
        raise checks.error("causal_attention is causal: leave is_causal at True")
    query, key, value = autocast.cast(query, key, value)
    rules = Rules(window=window, pattern=pattern, scale=scale, softcap=softcap, dropout_p=dropout_p)
    request = _request(query, key, value, rules, attn_mask, enable_gqa, sequences, visible_until, kernel_options)
    return _run(request, return_aux, backend)


def _request(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rules: Rules,
    attn_mask: Tensor | None,
    enable_gqa: bool,
    sequences: Sequences | None,
    visible_until: Tensor | None,
    kernel_options: KernelOptions | None,
) -> Request:
    """What selective and standard attention have in common, checked."""
    checks.kinds(dropout_p=rules.dropout_p, enable_gqa=enable_gqa)
    checks.optional(scale=rules.scale, softcap=rules.softcap, window=rules.window)
    checks.optional(attn_mask=attn_mask, sequences=sequences, visible_until=visible_until)
    checks.tensors(query, key, value, enable_gqa)
    start = None if sequences is None else sequences.start
    checks.places(query, attn_mask=attn_mask, sequences=start, visible_until=visible_until)
    checks.numbers(rules.dropout_p, rules.scale, rules.softcap, rules.window)
    mask, bias = None, None
    if attn_mask is not None:
        full = checks.attn_mask(attn_mask, query, key)
        if full.dtype != torch.bool:
            bias = full.to(compute_dtype(query.dtype))
        elif sequences is None and full.shape[1:3] == (1, 1):
            sequences = Sequences.from_mask(full[:, 0, 0].expand(query.shape[0], key.shape[2]))
        else:
            mask = full
    until = None
    if visible_until is not None:
        checks.visible_until(visible_until, key)
        until = visible_until if visible_until.ndim == 3 else visible_until.unsqueeze(1)
    if sequences is not None:
        checks.sequences(sequences, key)
    if rules.softcap == math.inf:  # a cap that nothing reaches
        rules = rules._replace(softcap=None)
    if kernel_options is not None:
        checks.kernel_options(kernel_options, KernelOptions.__annotations__)
        rules = rules._replace(**kernel_options)
    start = None if sequences is None else sequences.start
    return Request(query, key, value, rules, start=start, until=until, mask=mask, bias=bias)


def _initial_f(request: Request, initial_f: Tensor | None) -> Tensor | None:
    """F over all M keys: the new ones have not been selected yet."""
    if not checks.initial_f(initial_f, request):
        return None
    assert initial_f is not None
    return torch.nn.functional.pad(initial_f.to(compute_dtype(request.query.dtype)), (0, request.query.shape[-2]))


def _run(request: Request, return_aux: AuxRequest | None, backend: str | Backend) -> Tensor | tuple[Tensor, AuxOutput]:
    """The output, or with it what else was asked for."""
    if return_aux is None:
        return dispatch.attend(request, backend).output
    checks.aux_request(return_aux, request.rules)
    output, aux, _ = dispatch.attend(request._replace(wanted=return_aux), backend)
    return output, aux
