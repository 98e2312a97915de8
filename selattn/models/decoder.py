"""The paper's decoder without its head: embeddings, positions, pre-norm layers, and a last norm."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from selattn.cache import NEVER, Budgets, Policy, SelectiveCache
from selattn.errors import SelattnError
from selattn.models.attention import Context
from selattn.models.base import SelectivePreTrainedModel
from selattn.models.config import SelectiveConfig
from selattn.models.evicting import Evicting, selective_cache
from selattn.models.inputs import (
    TOLD,
    check_given,
    next_places,
    over_tokens,
    refuse_several,
    refuse_unknown,
    several,
    whole_places,
)
from selattn.models.layer import SelectiveDecoderLayer
from selattn.models.memory_loss import kept_fractions
from selattn.models.outputs import SelectiveModelOutput
from selattn.models.parts import make_norm, rotary_angles
from selattn.ops import AuxRequest, Backend, Rules, Sequences, checks
from selattn.ops.operator import in_transform


class SelectiveModel(Evicting, SelectivePreTrainedModel):
    """Token ids to the hidden states that a head reads."""

    def __init__(self, config: SelectiveConfig, *, share_config: bool = False) -> None:
        super().__init__(config, share_config=share_config)
        config = self.config
        # No padding_idx: the pad token may well be a token with a meaning, such as <EOS>, which has to be trained.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        learned = config.positions == "learned"
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(SelectiveDecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = make_norm(config)
        self.backend: Backend | None = None  # in force in the place of the config's, which is a name; never saved
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        output_f: bool = False,
        output_kept: bool = False,
        output_evictions: bool = False,
        selection_strength: float | Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cache_budgets: Budgets | int | Sequence[int] | None = None,
        cache_policy: str | Policy | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SelectiveModelOutput | tuple[Any, ...]:
        """As in any decoder of transformers, with these additions.

        Args:
            attention_mask: [B, tokens so far]; with a cache also [B, N], which tells of the new tokens only.
            output_f: return F of each layer (N x N each).
            output_kept: return the kept fraction of each layer.
            output_evictions: return the row from which each token is gone, of each layer; whole sequences only.
            selection_strength: replaces the config's, for a ramp during training.
            cu_seq_lens_q: cumulative lengths of the documents of one packed row, as padding-free collators give them.
            cache_budgets: K_l, how many tokens each layer may keep; replaces the config's.
            cache_policy: who leaves when a layer is full, a name or a policy; replaces the config's. A cache has both
                of its own: they need not be given again.
            seq_idx: [B, N], the number of the document that each token of a packed row belongs to.
        """
        refuse_unknown(kwargs, type(self).forward)
        if selection_strength is not None:
            checks.strength(selection_strength)
        told = (attention_mask, position_ids, cu_seq_lens_q, seq_idx)
        check_given(input_ids, inputs_embeds, self.config.hidden_size, **dict(zip(TOLD, told, strict=True)))
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        shape = (x.shape[0], x.shape[1])
        cache = selective_cache(past_key_values)
        # A compiled step has one graph for all lengths, so it asks the cache for none.
        one_step = (
            torch.compiler.is_compiling() and cache is not None and shape[1] == 1 and cache.layers[0].is_initialized
        )
        past = None if one_step else 0 if cache is None else cache.get_seq_length()
        if cache is not None and past != 0:
            places = next_places(shape, cache, past, *told)
        else:
            places = whole_places(shape, *told, x.device)
        # Only whole sequences have gradients, and can say what was kept of them: then a cache is filled afterwards.
        whole = past == 0 and (torch.is_grad_enabled() or output_kept or output_evictions)
        packed = cu_seq_lens_q is not None or seq_idx is not None or (position_ids is not None and shape[1] > 1)
        if cache is not None or self._wants_cache(use_cache, places.sequences, packed):
            if output_kept and not whole:
                raise SelattnError("kept fractions and the memory term need whole sequences: leave the cache out")
            if output_evictions and not whole:
                raise SelattnError("who left when is told of whole sequences: leave the cache out")
            if packed:
                refuse_several(places.sequences)
            cache = self._cache(cache, cache_budgets, cache_policy)
        # A cache owns its budgets and its policy.
        budgets, policy = self.limits(cache_budgets, cache_policy) if cache is None else (None, cache.policy)

        ends = shape[1] if past is None else past + shape[1]
        long = ends > self.config.max_position_embeddings
        x, rotary = self._positioned(x, places.positions, check=position_ids is not None or one_step or long)

        context = Context(
            places.sequences,
            rotary,
            cache,
            whole=cache is None or whole,
            real=None if cache is None else places.real,
            budgets=budgets,
            policy=policy,
            rules=self._rules(selection_strength),
            wanted=AuxRequest(
                f=output_f,
                memory=output_kept,
                weights=bool(self.config.output_attentions if output_attentions is None else output_attentions),
            ),
            backend=self.backend or self.config.backend,
        )
        want_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        hidden: list[Any] = []
        found = []
        # Fewer layers, where transformers drafts by leaving early.
        for layer in itertools.islice(self.layers, self.config.num_hidden_layers):
            if want_hidden:
                hidden.append(x)
            x, *parts = layer(x, context)
            found.append(parts)
        x = self.norm(x)
        kept, f, weights, evicted_at = zip(*found, strict=True)
        if cache is not None and not whole and (output_f or context.wanted.weights):
            seen = (places.sequences, cache.layers[0].length, cache.get_seq_length())
            f, weights = (tuple(over_tokens(each, *seen) for each in of) for of in (f, weights))

        result = SelectiveModelOutput(
            last_hidden_state=x,
            past_key_values=cache,
            hidden_states=(*hidden, x) if want_hidden else None,
            attentions=weights if context.wanted.weights else None,
            kept=kept_fractions(kept, x, places.sequences) if output_kept else None,
            f=f if output_f else None,
            evicted_at=tuple(_or_never(at, shape, x.device) for at in evicted_at) if output_evictions else None,
        )
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()

    def enter(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Context]:
        """What enters the first layer, [B, N, d_model], and what all layers share: whole sequences, no cache.

        For those who run only some of the layers: `x, *_ = layer(x, context)` for each of `layers`, then `norm`, is
        `forward` with the config's budgets and policy, or others put into the context.
        """
        shape = (input_ids.shape[0], input_ids.shape[1])
        places = whole_places(shape, attention_mask, position_ids, None, None, input_ids.device)
        x, rotary = self._positioned(self.embed_tokens(input_ids), places.positions, check=True)
        budgets, policy = self.limits(None, None)
        return x, Context(
            places.sequences,
            rotary,
            cache=None,
            whole=True,
            real=None,
            budgets=budgets,
            policy=policy,
            rules=self._rules(None),
            wanted=AuxRequest(),
            backend=self.backend or self.config.backend,
        )

    def _rules(self, strength: float | Tensor | None) -> Rules:
        """What the config says of all layers that select; it is asked once, which takes a while."""
        strength = self.config.selection_strength if strength is None else strength
        return Rules(self.config.selection, strength, tau=self.config.memory_tau)

    def _positioned(self, x: Tensor, positions: Tensor, check: bool) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Embeddings with learned positions in them, or else the rotary angles beside them."""
        if self.embed_positions is None:
            return self.dropout(x), rotary_angles(self.config, positions)
        if check:
            self._check_positions(positions)
        return self.dropout(x + self.embed_positions(positions).to(x.device)), None

    def own_eviction(self) -> tuple[Budgets | None, str | Policy]:
        """Budgets and policy of the config."""
        return self.config.budgets, self.config.cache_policy

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and those that there are."""
        return self.config.num_hidden_layers, len(self.layers)

    def _wants_cache(self, use_cache: bool | None, sequences: Sequences | None, packed: bool) -> bool:
        """Whether a pass that was given no cache makes one. Where there cannot be one, who did not ask gets none."""
        if use_cache is not None:
            return use_cache
        if not self.config.use_cache or self._recomputes():
            return False
        if torch.compiler.is_exporting() or in_transform():
            return False
        if sequences is None or not packed:
            return True
        return not torch.compiler.is_compiling() and not bool(several(sequences))

    def _recomputes(self) -> bool:
        return self.training and any(layer.gradient_checkpointing for layer in self.layers)

    def _cache(
        self,
        given: SelectiveCache | None,
        budgets: Budgets | int | Sequence[int] | None,
        policy: str | Policy | None,
    ) -> SelectiveCache:
        """The given cache, if it fits, or a new one."""
        if self._recomputes():
            raise SelattnError("gradient checkpointing runs a layer twice, and would fill a cache twice: leave one out")
        return self.fitting_cache(given, budgets, policy)

    def _check_positions(self, positions: Tensor) -> None:
        """No learned position exists past the context size; packed rows may be longer, their positions restart."""
        limit = self.config.max_position_embeddings
        if torch.compiler.is_compiling():
            fits = (positions >= 0) & (positions < limit)
            torch._assert_async(fits.all(), f"there are {limit} learned positions, and one outside them was asked for")
            return
        lowest, highest = (int(edge) for edge in positions.aminmax())
        if highest >= limit:
            raise SelattnError(
                f"a sequence of {highest + 1} tokens is longer than the {limit} learned positions: "
                "cut it, or use a model with rotary positions"
            )
        if lowest < 0:
            raise SelattnError(f"position_ids must be at least 0, not {lowest}")


def _or_never(at: Tensor | None, shape: tuple[int, int], device: torch.device) -> Tensor:
    """[B, P, N] when each token left; of a layer with no budget nobody did."""
    return torch.full((shape[0], 1, shape[1]), NEVER, dtype=torch.int64, device=device) if at is None else at
