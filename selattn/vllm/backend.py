"""What vLLM asks of our models beside the computation: how large states are, how they are copied, what a step is about.

To vLLM our state is that of a recurrent layer: one block for each request, of a size that does not grow.

Shapes: n requests of a step.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec

KIND = MambaAttentionBackendEnum.LINEAR  # vLLM wants one of its kinds of state; nothing follows from it here
TOGETHER = 2  # pieces are padded to the longest of a group, which is at most so many times the shortest


@dataclass(frozen=True)
class SelectiveSpec(MambaSpec):
    """One block for each request. Layers with other budgets share a group, and none is padded to the largest."""

    def is_uniform_with_collection(self, kv_cache_specs: dict[str, KVCacheSpec]) -> bool:
        """Whether these layers form one group."""
        return all(isinstance(spec, SelectiveSpec) for spec in kv_cache_specs.values())


@dataclass(frozen=True)
class Piece:
    """Several tokens of one request: a prompt, or a part of it.

    Attributes:
        row: the block of its state.
        begin, end: its tokens in the step.
        length: tokens of the request before them.
    """

    row: int
    begin: int
    end: int
    length: int


@dataclass(frozen=True)
class Batch:
    """A step: first the requests that bring one token each, then the pieces of prompts.

    Attributes:
        rows: [n] int64, blocks of the requests with one token.
        length: [n] int64, tokens of each before this one.
        longest: the largest of `length`.
        groups: pieces that are served together.
        new: blocks of the requests that begin, which still hold another's state; None if there are none.
    """

    rows: Tensor
    length: Tensor
    longest: int
    groups: list[list[Piece]] = field(default_factory=list)
    new: Tensor | None = None

    def as_pieces(self) -> list[Piece]:
        """The requests with one token, each as a piece."""
        each = enumerate(zip(self.rows.tolist(), self.length.tolist(), strict=True))
        return [Piece(row, i, i + 1, length) for i, (row, length) in each]


class BatchBuilder(AttentionMetadataBuilder[Batch]):
    """Makes a `Batch` of what vLLM knows."""

    _cudagraph_support = AttentionCGSupport.NEVER  # the number of tokens of each piece is read on the CPU
    reorder_batch_threshold = 1  # requests with one token come first

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.mode = vllm_config.cache_config.mamba_cache_mode

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Batch:
        """The step."""
        common, n = common_attn_metadata, common_attn_metadata.num_reqs
        table = mamba_get_block_table_tensor(common.block_table_tensor, common.seq_lens, self.kv_cache_spec, self.mode)
        rows = table[:n, 0].long()
        starts = common.query_start_loc_cpu[: n + 1].tolist()
        counts = [end - begin for begin, end in itertools.pairwise(starts)]
        steps = next((i for i, count in enumerate(counts) if count != 1), n)
        exact = common.seq_lens if common.seq_lens_cpu_upper_bound is None else common.seq_lens_cpu_upper_bound
        lengths = [total - count for total, count in zip(exact[:n].tolist(), counts, strict=True)]
        pieces, new = [], [i for i, length in enumerate(lengths) if not length and counts[i]]
        if steps < n:
            blocks = rows.tolist()
            pieces = [Piece(blocks[i], starts[i], starts[i + 1], lengths[i]) for i in range(steps, n) if counts[i]]
        return Batch(
            rows[:steps].contiguous(),
            torch.tensor(lengths[:steps], dtype=torch.int64, device=rows.device),
            max(lengths[:steps], default=0),
            together(pieces),
            rows[new] if new else None,
        )


def together(pieces: list[Piece]) -> list[list[Piece]]:
    """Groups of pieces that are about as long."""
    groups: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece.end - piece.begin, reverse=True):
        size = piece.end - piece.begin
        if groups and (groups[-1][0].end - groups[-1][0].begin) <= TOGETHER * size:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


class SelectiveBackend(AttentionBackend):
    """Names the builder; the layer itself computes."""

    @staticmethod
    def get_name() -> str:
        return "SELATTN"

    @staticmethod
    def get_impl_cls() -> Any:
        raise NotImplementedError("selattn.vllm.layer computes")

    @staticmethod
    def get_builder_cls() -> type[BatchBuilder]:
        return BatchBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        """As vLLM calls backends whose layers keep a state of one block."""
        return True


class Stateful:
    """Stands before a model: it has no attention that vLLM knows of, and its states can be copied.

    vLLM copies the state of a request where a prefix ends that others may share.
    """

    is_attention_free: ClassVar[Literal[True]] = True
    has_inner_state: ClassVar[Literal[True]] = True
    supports_mamba_prefix_caching: ClassVar[Literal[True]] = True

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        """How the one tensor of a layer's state is copied."""
        return (get_temporal_copy_spec,)

    @classmethod
    def get_mamba_state_copy_funcs(cls, mamba_types: set[MambaAttentionBackendEnum]) -> dict[Any, tuple[Any, ...]]:
        """The same for every kind of state that vLLM asks for."""
        return dict.fromkeys(mamba_types, cls.get_mamba_state_copy_func())
