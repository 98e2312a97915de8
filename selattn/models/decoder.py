"""The paper's decoder without its head: embeddings, positions, pre-norm layers, and a last norm."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from selattn.cache import Budgets, Policy
from selattn.errors import SelattnError
from selattn.models.base import SelectivePreTrainedModel
from selattn.models.config import SelectiveConfig
from selattn.models.evicting import Evicting
from selattn.models.inputs import check_given, refuse_unknown
from selattn.models.layer import SelectiveDecoderLayer
from selattn.models.memory_loss import kept_fractions
from selattn.models.outputs import SelectiveModelOutput
from selattn.models.parts import make_norm, rotary_angles
from selattn.models.passes import Pass, Told, begin, evicted_rows
from selattn.ops import Backend, Rules


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
            cache_policy: which token is evicted when a layer is full, a name or a policy; replaces the config's. A
                cache has both of its own: they need not be given again.
            seq_idx: [B, N], the number of the document that each token of a packed row belongs to.
        """
        refuse_unknown(kwargs, type(self).forward)
        told = Told(attention_mask, position_ids, cu_seq_lens_q, seq_idx)
        check_given(input_ids, inputs_embeds, self.config.hidden_size, **told._asdict())
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        now = begin(
            self,
            (x.shape[0], x.shape[1]),
            x.device,
            told,
            self._rules(),
            strength=selection_strength,
            cache=past_key_values,
            use_cache=use_cache,
            budgets=cache_budgets,
            policy=cache_policy,
            output_f=output_f,
            output_kept=output_kept,
            output_evictions=output_evictions,
            output_attentions=self.config.output_attentions if output_attentions is None else output_attentions,
            backend=self.backend or self.config.backend,
        )
        x, now.rotary = self._positioned(x, now.places.positions, check=position_ids is not None or self._long(now))
        want_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        hidden: list[Any] = []
        found = []
        # Fewer layers, where transformers drafts by leaving early.
        for layer in itertools.islice(self.layers, self.config.num_hidden_layers):
            if want_hidden:
                hidden.append(x)
            x, *parts = layer(x, now)
            found.append(parts)
        x = self.norm(x)
        kept, f, weights, evicted_at = zip(*found, strict=True)
        result = SelectiveModelOutput(
            last_hidden_state=x,
            past_key_values=now.cache,
            hidden_states=(*hidden, x) if want_hidden else None,
            attentions=now.over_tokens(weights) if now.wanted.weights else None,
            kept=kept_fractions(kept, x, now.sequences) if output_kept else None,
            f=now.over_tokens(f) if output_f else None,
            evicted_at=evicted_rows(evicted_at, x) if output_evictions else None,
        )
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()

    def enter(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Pass]:
        """What enters the first layer, [B, N, d_model], and what all layers share: whole sequences, no cache.

        For those who run only some of the layers: `x, *_ = layer(x, context)` for each of `layers`, then `norm`, is
        `forward` with the config's budgets and policy, or others put into the context.
        """
        shape, told = (input_ids.shape[0], input_ids.shape[1]), Told(attention_mask, position_ids)
        backend = self.backend or self.config.backend
        now = begin(self, shape, input_ids.device, told, self._rules(), use_cache=False, backend=backend)
        x, now.rotary = self._positioned(self.embed_tokens(input_ids), now.places.positions, check=True)
        now.whole = True
        return x, now

    def _rules(self) -> Rules:
        """What the config says of all layers that select; it is asked once, which takes a while."""
        return Rules(self.config.selection, self.config.selection_strength, tau=self.config.memory_tau)

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

    @property
    def selects(self) -> bool:
        """Whether any layer of the config does."""
        return self.config.selects

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and those that there are."""
        return self.config.num_hidden_layers, len(self.layers)

    def wants_cache(self) -> bool:
        """Whether a pass that was not told makes a cache."""
        return bool(self.config.use_cache)

    def recomputes(self) -> bool:
        """Whether the layers run twice, by gradient checkpointing."""
        return self.training and any(layer.gradient_checkpointing for layer in self.layers)

    def _long(self, now: Pass) -> bool:
        """Whether positions may lie past the context size, as far as that is known without looking at them."""
        if now.cache is None:
            return now.places.positions.shape[-1] > self.config.max_position_embeddings
        if torch.compiler.is_compiling():
            return True
        return now.cache.get_seq_length() + now.places.positions.shape[-1] > self.config.max_position_embeddings

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
