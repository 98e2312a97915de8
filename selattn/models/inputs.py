"""From what transformers passes (masks, positions, cumulative lengths) to the sequences of a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.cache import SelectiveCache
from selattn.errors import SelattnError, advice
from selattn.ops import Sequences, checks

# What collators and older callers pass beside the arguments of `forward`. Nothing is lost by not reading it: the
# lengths of keys are those of queries here, and the cache itself knows how many tokens it holds.
UNREAD = ("cu_seq_lens_k", "max_length_q", "max_length_k", "cache_position")
# What callers written for all kinds of models pass: harmless as long as it is empty, and refused when it is not.
EMPTY = ("head_mask", "token_type_ids", "encoder_hidden_states", "encoder_attention_mask")

PACKED = "cu_seq_lens_q describes one packed row: batch size 1, and no cache before it"


class Told(NamedTuple):
    """How callers describe the tokens of a batch, as transformers has it."""

    attention_mask: Tensor | None = None  # [B, tokens so far], 0 for padding
    position_ids: Tensor | None = None  # [B, N]
    cu_seq_lens_q: Tensor | None = None  # cumulative lengths of the documents of one packed row
    seq_idx: Tensor | None = None  # [B, N], the number of each token's document


class Places(NamedTuple):
    """Where the new tokens of a forward stand."""

    sequences: Sequences | None  # over all tokens so far; None: one in each row, no padding
    positions: Tensor  # [B, N]; 0 for padding
    real: Tensor | None = None  # [B, N] bool, False for padding; None: no padding


# -- arguments --------------------------------------------------------------------------------------------------------


def refuse_unknown(kwargs: Mapping[str, Any], forward: Callable[..., Any], options: Sequence[str]) -> None:
    """A mistyped argument must not be swallowed by the `**kwargs` of a `forward`, of which it knows `options`."""
    for name, value in kwargs.items():
        if name in EMPTY:
            _refuse_full(name, value)
        elif name not in UNREAD and name not in options:
            known = [*inspect.signature(forward).parameters, *options, *UNREAD, *EMPTY]
            hint = advice(name, known, "a selattn model has no use for it")
            raise SelattnError(f"unknown argument {name!r} of forward: {hint}")


def _refuse_full(name: str, value: Tensor | None) -> None:
    """All token types being 0, as tokenizers give them for single texts, is the same as none."""
    rule = f"a selattn model has no use for {name}: leave it out"
    if value is None:
        return
    if name == "token_type_ids" and torch.compiler.is_compiling():
        torch._assert_async((value == 0).all(), rule)  # values are unknown here, so the graph itself asserts it
    elif name != "token_type_ids" or bool(value.any()):
        raise SelattnError(rule)


def one_of(ids: Tensor | None, embeds: Tensor | None) -> Tensor:
    """The token ids, or the embeddings that stand for them."""
    given = ids if embeds is None else embeds
    if given is None or (ids is not None and embeds is not None):
        raise SelattnError("give exactly one of input_ids and inputs_embeds")
    return given


def check_given(
    ids: Tensor | None, embeds: Tensor | None, width: int, told: Told, labels: Tensor | None = None
) -> None:
    """Raise for arguments of the wrong kind, before any work is done."""
    given = one_of(ids, embeds)
    named = {"input_ids": ids, "inputs_embeds": embeds, **told._asdict(), "labels": labels}
    if not all(x is None or isinstance(x, Tensor) for x in named.values()):
        checks.optional(**named)  # which says what is wrong
    if ids is not None and ids.dim() != 2:
        raise SelattnError(f"input_ids must be [batch, tokens], not {list(ids.shape)}")
    if embeds is not None and (embeds.dim() != 3 or embeds.shape[-1] != width):
        raise SelattnError(f"inputs_embeds must be [batch, tokens, {width}], not {list(embeds.shape)}")
    for name, x in named.items():
        if x is not None and x.is_floating_point() and name not in ("attention_mask", "inputs_embeds"):
            raise SelattnError(f"{name} must hold whole numbers, not {x.dtype}")
    if labels is not None and labels.shape != given.shape[:2]:
        raise SelattnError(f"labels must be [batch, tokens] = {list(given.shape[:2])}, not {list(labels.shape)}")


# -- sequences and positions ------------------------------------------------------------------------------------------


def sequences_of(
    shape: tuple[int, int], past: int, told: Told, device: torch.device
) -> tuple[Sequences | None, Tensor]:
    """The sequences over past + N tokens (None: one in each row, no padding), and the N new tokens' positions [B, N].

    `attention_mask` tells padding. Cumulative lengths tell documents, or their numbers (`seq_idx`), or else positions
    that restart. A cache holds one sequence in each row.
    """
    batch, length = shape
    _check_shapes(shape, past, told)
    mask = _unless_all_real(told.attention_mask)
    new_mask = None if mask is None else mask[:, past:]
    documents = None
    if told.cu_seq_lens_q is not None:
        if batch != 1 or past:
            raise SelattnError(PACKED)
        packed = Sequences.from_cu_seqlens(told.cu_seq_lens_q.to(device), length)
        documents, mask = packed.start, packed.real if mask is None else packed.real & mask
    elif told.seq_idx is not None:
        documents = told.seq_idx.expand(batch, length)
    elif told.position_ids is not None and length > 1:
        documents = _documents(told.position_ids.expand(batch, length), new_mask)

    sequences = None if mask is None else Sequences.from_mask(mask)
    if documents is not None and past == 0:
        sequences = _unless_one(Sequences.from_documents(documents, mask))
    elif documents is not None:
        refuse_several(Sequences.from_documents(documents, new_mask))
    return sequences, _positions(shape, past, sequences, told.position_ids, device)


def whole_places(shape: tuple[int, int], told: Told, device: torch.device) -> Places:
    """The places of tokens that come as whole sequences, with nothing before them."""
    sequences, positions = sequences_of(shape, 0, told, device)
    return Places(sequences, positions, _if_padded(sequences, 0))


def next_places(shape: tuple[int, int], cache: SelectiveCache, past: int | None, told: Told) -> Places:
    """Of tokens that continue what a cache holds, each row on its own.

    With no mask the new tokens are real. A mask [B, N] covers the new tokens only; one over all tokens so far must
    repeat what earlier masks said of the earlier tokens. A compiled step has one graph for all lengths, so it asks for
    none (`past` is None), and reads masks of the first kind only.
    """
    length, mask = cache.layers[0].length, told.attention_mask
    if len(length) != shape[0]:
        raise cache.layers[0].wrong_batch(shape[0])
    if told.cu_seq_lens_q is not None:
        raise SelattnError(PACKED)
    new_only = mask is not None and mask.shape[-1] == shape[1]
    if past is None:
        real = _unless_all_real(mask) if new_only else None
        return Places(None, length[:, None] if told.position_ids is None else told.position_ids, real)
    if mask is None and told.seq_idx is None and (told.position_ids is None or shape[1] == 1):
        _check_shapes(shape, past, told)
        if told.position_ids is not None:
            return Places(None, told.position_ids.expand(shape))
        return Places(None, length[:, None] + torch.arange(shape[1], device=length.device))
    if mask is None or new_only:
        sequences, positions = sequences_of(shape, 0, told, length.device)
        refuse_several(sequences)
        real = None if sequences is None else sequences.real
        if told.position_ids is None:
            positions = positions + length[:, None]
        return Places(None, positions if real is None else positions.masked_fill(~real, 0), real)
    sequences, positions = sequences_of(shape, past, told, length.device)
    _check_repeated(mask[:, : -shape[1]], length)
    return Places(sequences, positions, _if_padded(sequences, past))


def _check_repeated(earlier: Tensor, length: Tensor) -> None:
    """A mask counts as many earlier tokens as the cache."""
    so_far = earlier.long().sum(-1)
    if not torch.compiler.is_compiling() and not torch.equal(so_far.to(length.device), length):
        raise SelattnError(
            f"attention_mask counts {so_far.tolist()} tokens before these, and the cache holds {length.tolist()}: "
            "repeat what the masks of earlier turns said"
        )


def _if_padded(sequences: Sequences | None, past: int) -> Tensor | None:
    """[B, N] which of the new tokens are no padding; None if none is."""
    real = None if sequences is None else sequences.real[:, past:]
    return None if real is None or (not _unknown(real) and bool(real.all())) else real


def over_tokens(x: Tensor | None, sequences: Sequences | None, length: Tensor, seen: int) -> Tensor | None:
    """[B, H, N, positions] that came from a cache, over the `seen` tokens of the row; 0 for padding.

    The cache has seen `length` [B] real tokens of each row.
    """
    if x is None:
        return None
    if sequences is None:
        if bool((length != seen).any()):
            raise SelattnError("earlier turns had padding: pass attention_mask, which says where, to get attentions")
        return x
    real, at = sequences.real[:, None, None], sequences.positions[:, None, None]
    here = x.gather(-1, at.clamp(max=x.shape[-1] - 1).expand(*x.shape[:-1], -1).to(x.device))
    return here.masked_fill(~real.to(x.device), 0.0)


def several(sequences: Sequences) -> Tensor:
    """0-d bool: whether a row holds more than one document."""
    return (sequences.first.sum(-1) > 1).any()


def refuse_several(sequences: Sequences | None) -> None:
    """A cache knows where a row begins, and no other borders: tokens that come later would see across them."""
    if sequences is None:
        return
    rule = "a cache holds one sequence in each row, and these rows hold several documents: pass use_cache=False"
    if torch.compiler.is_compiling():
        torch._assert_async(~several(sequences), rule)  # values are unknown here, so the graph itself asserts it
    elif bool(several(sequences)):
        raise SelattnError(rule)


def _positions(
    shape: tuple[int, int], past: int, sequences: Sequences | None, position_ids: Tensor | None, device: torch.device
) -> Tensor:
    """Each new token's position; 0 for padding, where none is needed and callers leave anything."""
    if position_ids is None:
        if sequences is None:
            return torch.arange(past, past + shape[1], device=device).expand(shape)
        return sequences.positions[:, past:]
    positions = position_ids.expand(shape)
    return positions if sequences is None else positions.masked_fill(~sequences.real[:, past:], 0)


def _documents(position_ids: Tensor, real: Tensor | None) -> Tensor:
    """A number for each document: one begins where a position does not follow that of the last real token."""
    before = position_ids.roll(1, -1)
    if real is not None:
        index = torch.arange(position_ids.shape[-1], device=position_ids.device)
        before = position_ids.gather(-1, torch.where(real, index, 0).cummax(-1).values.roll(1, -1))
    begins = position_ids != before + 1
    return (begins if real is None else begins & real).cumsum(-1)


def _check_shapes(shape: tuple[int, int], past: int, told: Told) -> None:
    batch, length = shape
    mask = told.attention_mask
    if mask is not None and tuple(mask.shape) != (batch, past + length):
        hint = ""
        if mask.ndim == 4:
            hint = "; documents are told by position_ids that restart, windows and patterns by the config"
        raise SelattnError(
            f"attention_mask must be [batch, tokens so far] = {[batch, past + length]} with 1 for real tokens, "
            f"not {list(mask.shape)}{hint}"
        )
    for name, given in (("position_ids", told.position_ids), ("seq_idx", told.seq_idx)):
        if given is not None and tuple(given.shape) not in {(batch, length), (1, length)}:
            raise SelattnError(f"{name} must be [batch, tokens] = {[batch, length]}, not {list(given.shape)}")


def _unknown(x: Tensor) -> bool:
    """Whether the values of a tensor are unknown: in a compiled graph, and on the meta device."""
    return torch.compiler.is_compiling() or x.is_meta


def _unless_all_real(mask: Tensor | None) -> Tensor | None:
    """A mask with no padding is no mask, which is cheaper. Where its values are unknown, it stays."""
    if mask is None:
        return None
    if mask.is_floating_point() and not mask.is_meta:
        _check_flags(mask)
    return None if not _unknown(mask) and bool(mask.all()) else mask.bool()


def _check_flags(mask: Tensor) -> None:
    """Of a mask of fractions, which others add to the logits, nothing but 0 and 1 has a meaning here."""
    rule = "attention_mask must be 1 for real tokens and 0 for padding, not what is added to the logits"
    flags = ((mask == 0) | (mask == 1)).all()
    if torch.compiler.is_compiling():
        torch._assert_async(flags, rule)  # values are unknown here, so the graph itself asserts it
    elif not bool(flags):
        raise SelattnError(rule)


def _unless_one(sequences: Sequences) -> Sequences | None:
    """None for one unpadded sequence in each row."""
    if _unknown(sequences.start) or bool(sequences.start.any()):
        return sequences
    return None
