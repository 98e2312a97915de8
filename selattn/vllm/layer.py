"""The layer: attention over the states of all requests, in place, in the memory that vLLM has reserved for them.

To torch.compile it is one opaque operator. In a step, all requests with one new token are one call of the compiled
library (on a GPU of the Triton kernel), which is told the blocks of their states; pieces of prompts follow.

Shapes: T tokens of a step; H query heads; G key-value heads; D head size; S masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.library import Library
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from selattn.cache import SlotLayer, attend
from selattn.cache.pool import Pool
from selattn.ops.backends import dispatch
from selattn.ops.eviction import StepRequest
from selattn.ops.request import Tokens
from selattn.vllm.backend import KIND, Batch, Piece, SelectiveBackend, SelectiveSpec
from selattn.vllm.plan import LayerPlan


class SelectiveAttention(nn.Module, MambaBase):
    """Takes the place of vLLM's `Attention`.

    Args:
        plan: what the layer keeps of a request, and by which rules it attends.
        prefix: the layer's name.
        config: of vLLM.
        backend: which implementation computes.
    """

    def __init__(self, plan: LayerPlan, prefix: str, config: VllmConfig, backend: str = "auto") -> None:
        super().__init__()
        self.plan, self.layer_name, self.backend = plan, prefix, backend
        self.dtype = config.model_config.dtype
        self.kv_cache: tuple[Tensor, ...] = (torch.tensor([]),)
        self.slots: SlotLayer | None = None
        self.stepwise = True
        layers = config.compilation_config.static_forward_context
        if prefix in layers:
            raise ValueError(f"there are two layers of the name {prefix}")
        layers[prefix] = self

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        selection_query: Tensor | None = None,
        selection_key: Tensor | None = None,
    ) -> Tensor:
        """[T, H * D] of queries [T, H * D], keys and values [T, G * D], and of a form [T, S * size]."""
        return torch.ops.selattn.serve_attention(query, key, value, selection_query, selection_key, self.layer_name)

    # -- what vLLM asks -----------------------------------------------------------------------------------------------

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> SelectiveSpec:
        """One block for each request; with shared prefixes one more for each border that is kept."""
        cache = vllm_config.cache_config
        size = cache.mamba_block_size
        return SelectiveSpec(
            block_size=vllm_config.model_config.max_model_len if size is None else size,
            shapes=tuple(self.get_state_shape()),
            dtypes=self.get_state_dtype(),
            mamba_type=KIND,
            mamba_cache_mode=cache.mamba_cache_mode,
        )

    def get_state_shape(self) -> Iterable[tuple[int, ...]]:
        """Bytes."""
        return ((self.plan.nbytes(self.dtype),),)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """Of bytes."""
        return (torch.int8,)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        """A kind of state that vLLM knows."""
        return KIND

    def get_attn_backend(self) -> type[SelectiveBackend]:
        """Who says what a step is about."""
        return SelectiveBackend

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Take the memory [blocks, 1, 1, bytes], strided as vLLM has laid it out."""
        super().bind_kv_cache(kv_cache)
        pages = self.kv_cache[0]
        slots = SlotLayer(self.plan.budget, self.plan.policy)
        slots.pool, slots.reserved = self.plan.pool(pages, self.dtype), pages.shape[0]
        slots.dtype, slots.device = self.dtype, pages.device
        self.slots = slots
        # A mask that selects in the eviction orders of other heads is served by the way of prompts.
        pool = slots.storage
        self.stepwise = self.plan.rules.selection is None or pool.position.shape[1] == 1 or pool.stands_alone

    # -- a step -------------------------------------------------------------------------------------------------------

    def attend(self, tokens: Tokens, batch: Batch) -> Tensor:
        """[T, H * D] of tokens [T, heads, features]."""
        slots, count, groups = self.slots, batch.rows.shape[0], batch.groups
        assert slots is not None
        if batch.new is not None:
            slots.storage.clear(batch.new)
        if count and not self.stepwise:
            groups, count = [batch.as_pieces(), *groups], 0
        steps = self._step(_cut(tokens, slice(0, count)), slots.storage, batch) if count else None
        if steps is not None and count == tokens.query.shape[0]:
            return steps
        output = tokens.query.new_zeros(tokens.query.shape[0], self.plan.heads * self.plan.size)
        if steps is not None:
            output[:count] = steps
        for group in groups:
            self._read(tokens, slots, group, output)
        return output

    def _step(self, tokens: Tokens, pool: Pool, batch: Batch) -> Tensor:
        """[n, H * D] of requests with one token each: one call for all of them."""
        each = Tokens(*(None if x is None else x.unsqueeze(2) for x in tokens))  # type: ignore[arg-type]
        plan = self.plan
        used = min(plan.budget, batch.longest + 1)
        request = StepRequest(each, plan.rules, pool, batch.rows, batch.length, plan.policy, plan.budget, used)
        return dispatch.step(request, self.backend).flatten(1)

    def _read(self, tokens: Tokens, slots: SlotLayer, group: list[Piece], output: Tensor) -> None:
        """Pieces of prompts, those of a group padded to the longest."""
        pool, device = slots.storage, output.device
        rows = torch.tensor([piece.row for piece in group])
        lengths = torch.tensor([piece.length for piece in group])
        counts = [piece.end - piece.begin for piece in group]
        pool.length[rows.to(device)] = lengths.to(device)
        pool.seen[rows] = lengths
        slots.use(rows)
        slots.filled = min(slots.storage.slots, int(lengths.max()))
        real = None
        if counts[-1] < counts[0]:
            real = torch.arange(counts[0], device=device) < torch.tensor(counts, device=device)[:, None]
        parts = [_cut(tokens, slice(piece.begin, piece.end)) for piece in group]
        padded = Tokens(*(_padded([x[i] for x in parts], counts[0]) for i in range(len(tokens))))  # type: ignore[arg-type]
        found = attend(slots, padded._replace(real=real), self.plan.rules, backend=self.backend).output
        for x, piece, count in zip(found, group, counts, strict=True):
            output[piece.begin : piece.end] = x[:, :count].transpose(0, 1).flatten(1)


def _cut(tokens: Tokens, part: slice) -> Tokens:
    """Some of tokens [T, heads, features]."""
    return Tokens(*(None if x is None else x[part] for x in tokens))  # type: ignore[arg-type]


def _padded(each: list[Any], longest: int) -> Tensor | None:
    """Tensors [n, heads, features] as one [B, heads, longest, features]."""
    if each[0] is None:
        return None
    if len(each) == 1:
        return each[0].transpose(0, 1)[None]
    return torch.stack([nn.functional.pad(x.transpose(0, 1), (0, 0, 0, longest - len(x))) for x in each])


def serve_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    selection_query: Tensor | None,
    selection_key: Tensor | None,
    layer: str,
) -> Tensor:
    """What a layer gives in the step that vLLM is in the middle of; zeros while it measures memory."""
    context = get_forward_context()
    found: SelectiveAttention = context.no_compile_layers[layer]
    steps: Any = context.attn_metadata
    if steps is None:
        return query.new_zeros(query.shape)
    plan = found.plan
    form_heads = 1 if plan.form is None else plan.form[0]
    tokens = Tokens(
        query.unflatten(-1, (plan.heads, plan.size)),
        key.unflatten(-1, (plan.groups, plan.size)),
        value.unflatten(-1, (plan.groups, plan.size)),
        None,
        *(None if x is None else x.unflatten(-1, (form_heads, -1)) for x in (selection_query, selection_key)),
    )
    return found.attend(tokens, steps[layer])


def _shape(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    selection_query: Tensor | None,
    selection_key: Tensor | None,
    layer: str,
) -> Tensor:
    return query.new_empty(query.shape)


# The operator lives as long as this object. What it changes, the states, no graph knows of.
LIBRARY = Library("selattn", "FRAGMENT")
LIBRARY.define(
    "serve_attention(Tensor query, Tensor key, Tensor value, Tensor? selection_query, Tensor? selection_key, str layer)"
    " -> Tensor"
)
for _key in ("CPU", "CUDA"):
    LIBRARY.impl("serve_attention", serve_attention, dispatch_key=_key)
LIBRARY._register_fake("serve_attention", _shape)
