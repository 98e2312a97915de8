"""What a stock model becomes: its own class, with budgets, a cache that keeps F, and the memory loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from selattn.cache import Budgets, Policy
from selattn.errors import SelattnError
from selattn.models.base import Recomputing
from selattn.models.causal_lm import next_tokens
from selattn.models.evicting import Evicting, PrunedGeneration
from selattn.models.kinds import AttentionKind
from selattn.models.memory_loss import kept_fractions, kept_tokens, memory_term, share_of_labels
from selattn.models.outputs import selective_output
from selattn.models.passes import Pass, Told, begin, evicted_rows
from selattn.models.seam import Description, LayerView, end_tokens
from selattn.models.splitting import check_loading
from selattn.models.stock.attention import NAME, PASS
from selattn.models.stock.classes import family_of_config
from selattn.models.stock.families import check_config, layer_windows
from selattn.models.stock.form import add_forms
from selattn.models.stock.settings import StockSettings
from selattn.ops import Rules


class StockBase(Evicting, PrunedGeneration, Recomputing):
    """What every model has that was made selective. It stands before a class of transformers."""

    config: Any
    training: bool
    __call__: Callable[..., Any]
    _shift_right: Callable[[Tensor], Tensor]

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        check_config(config, type(self).__name__)
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]  # of the class that stands behind it
        self.equip()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; from safetensors only, and whole or sharded by FSDP2, but not cut up."""
        check_loading(kwargs)
        return super().from_pretrained(*args, **kwargs)  # type: ignore[misc]

    def equip(self) -> None:
        """Add what a selective model has beside the stock one."""
        raise NotImplementedError

    def unequip(self) -> None:
        """Take that back, but for the selecting forms."""
        raise NotImplementedError

    @property
    def settings(self) -> StockSettings:
        """What makes it selective; the config is parsed again only after a change."""
        parsed = self.__dict__.get("_selattn_parsed")
        if parsed is None or parsed[0] != self.config.selattn:
            parsed = (copy.deepcopy(self.config.selattn), StockSettings.from_dict(self.config.selattn))
            self.__dict__["_selattn_parsed"] = parsed
        settings: StockSettings = parsed[1]
        return settings

    def wants_cache(self) -> bool:
        """Whether a pass that was not told makes a cache."""
        return bool(self.config.use_cache) and not self.training

    def _rules(self) -> Rules:
        """What the config says of all layers."""
        settings = self.settings
        return Rules(settings.selection, settings.strength, tau=settings.memory_tau)

    def own_eviction(self) -> tuple[Budgets | None, str | Policy]:
        """Budgets and policy of the config."""
        return self.settings.budgets, self.settings.cache_policy

    @property
    def selects(self) -> bool:
        """Whether there is a selection."""
        return self.settings.selection is not None


class StockSelective(StockBase):
    """A decoder: `class SelectiveLlamaForCausalLM(StockSelective, LlamaForCausalLM)`."""

    def equip(self) -> None:
        """Our attention function, and a selecting form in each layer if there is one."""
        found = self._attention()
        if len(found) != self.config.num_hidden_layers:
            layers = self.config.num_hidden_layers
            raise SelattnError(f"{type(self).__name__} has {len(found)} attention layers, not {layers}")
        add_forms(found, self.settings.form, self.config)
        self.set_attn_implementation(NAME)

    def unequip(self) -> None:
        """Nothing: the attention function goes with the class."""

    def _attention(self) -> list[Any]:
        """The self-attention of each layer."""
        family = family_of_config(self.config)
        model: Any = self
        return [module for module in model.modules() if type(module).__name__ == family.attention]

    @property
    def description(self) -> Description:
        """What is known of the model without its weights."""
        return describe(self.config)

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and those that there are."""
        layers = self.config.num_hidden_layers
        return layers, layers

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Only ours: any other would make the model a standard one without a word."""
        if attn_implementation not in (NAME, None, "eager", "sdpa"):
            raise SelattnError(
                f"attn_implementation={attn_implementation!r} knows no F: use make_standard(model) first"
            )
        super().set_attn_implementation(NAME, *args, **kwargs)  # type: ignore[misc]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_f: bool = False,
        output_kept: bool = False,
        output_evictions: bool = False,
        selection_strength: float | Tensor | None = None,
        cache_budgets: Budgets | int | Sequence[int] | None = None,
        cache_policy: str | Policy | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in the stock model; what is ours as in `SelectiveModel.forward`.

        The output has `lm_loss`, `memory_loss`, `kept`, `f` and `evicted_at` beside what the stock model gives, where
        they are asked for. Nothing crosses a sequence's border, so the loss predicts nothing across it either.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise SelattnError("give exactly one of input_ids and inputs_embeds")
        given = input_ids if input_ids is not None else inputs_embeds
        assert given is not None
        told = (attention_mask, position_ids, kwargs.get("cu_seq_lens_q"), kwargs.get("seq_idx"))
        now = begin(
            self,
            (given.shape[0], given.shape[1]),
            given.device,
            Told(*told),
            self._rules(),
            strength=selection_strength,
            cache=past_key_values,
            use_cache=use_cache,
            budgets=cache_budgets,
            policy=cache_policy,
            output_f=output_f,
            output_kept=output_kept,
            output_evictions=output_evictions,
            output_attentions=output_attentions,
            learns=labels is not None and self.settings.selection is not None,
            backend=self.settings.backend,
        )
        if labels is not None and now.sequences is not None:
            kwargs["shift_labels"] = next_tokens(labels, now.sequences)
        if isinstance(logits_to_keep, Tensor) or logits_to_keep:
            kwargs["logits_to_keep"] = logits_to_keep
        more = {"num_items_in_batch": num_items_in_batch, "output_attentions": output_attentions}
        kwargs |= {name: value for name, value in more.items() if value is not None}
        result = super().forward(  # type: ignore[misc]
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=now.cache,
            inputs_embeds=inputs_embeds,
            labels=labels,
            use_cache=now.cache is not None,
            return_dict=True,
            **{PASS: now},
            **kwargs,
        )
        share = 1.0 if labels is None else share_of_labels(next_tokens(labels), num_items_in_batch)
        result = add_results(result, now, self.settings.memory_epsilon, given, share)
        if output_attentions:
            result["attentions"] = now.over_tokens(result.attentions)
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()

    def states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache_budgets: Budgets | None = None,
        cache_policy: Policy | None = None,
    ) -> Tensor:
        """What `head` reads, [B, N, d_model]: a forward that makes the logits of the last token only."""
        found: list[Tensor] = []
        model: Any = self
        hook = model.base_model.register_forward_hook(lambda module, args, output: found.append(output[0]))
        try:
            limits = {"cache_budgets": cache_budgets, "cache_policy": cache_policy}
            self(
                input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                use_cache=False,
                logits_to_keep=1,
                **limits,
            )
        finally:
            hook.remove()
        return found[0]

    def head(self, states: Tensor) -> Tensor:
        """The logits, [..., V], of some of these states."""
        model: Any = self
        logits: Tensor = model.get_output_embeddings()(states)
        cap = getattr(self.config, "final_logit_softcapping", None)  # Gemma's
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def watch(self, input_ids: Tensor, weights: bool = True) -> Iterator[LayerView]:
        """F and attention weights of each layer, without budgets."""
        found = self(input_ids, use_cache=False, output_f=True, output_attentions=weights or None)
        for layer, f in enumerate(found.f):
            yield LayerView(f, found.attentions[layer] if weights else None)

    def evictions(self, input_ids: Tensor, budgets: Budgets, policy: Policy) -> Sequence[Tensor]:
        """The row from which each token is gone, [B, P, N] of each layer."""
        limits = {"cache_budgets": budgets, "cache_policy": policy}
        found: Sequence[Tensor] = self(input_ids, use_cache=False, output_evictions=True, **limits).evicted_at
        return found


def add_results(stock: Any, now: Pass, epsilon: float, given: Tensor, share: Tensor | float) -> Any:
    """The stock model's output with what selection adds: the memory term in the loss, F, evictions.

    Args:
        stock: the output of the stock model; with a loss if there were labels.
        now: the pass, with what the layers found.
        epsilon: of the memory term.
        given: [B, N, ...] the tokens that attended.
        share: of the labels of a whole step, which weighs this batch's memory term.
    """
    kind: Any = type(stock)
    result = selective_output(kind)(**stock)
    found = [now.found[layer] for layer in sorted(now.found)]
    if result.get("loss") is not None:
        result["lm_loss"] = result.loss.detach().clone()  # a trainer with several processes scales the loss in place
    if now.wanted.memory:
        memory = [None if each.aux.memory is None else kept_tokens(each.aux.memory, now.sequences) for each in found]
        kept = kept_fractions(memory, given, now.sequences)
        result["kept"] = kept.detach()
        if result.get("loss") is not None:
            term = memory_term(kept.to(result.loss.device), epsilon)
            term = term * (share.to(term.device) if isinstance(share, Tensor) else share)
            result["memory_loss"] = term.detach()
            if epsilon:
                result["loss"] = result.loss + term
    if now.wanted.f:
        result["f"] = tuple(each.aux.f for each in found)
    if now.evictions:
        result["evicted_at"] = evicted_rows((each.evicted_at for each in found), given)
    return result


def describe(config: Any) -> Description:
    """What a selective config says of its model."""
    settings = StockSettings.from_dict(config.selattn)
    family = family_of_config(config)
    selects = settings.selection is not None
    learned = config.max_position_embeddings if family.model_type == "gpt2" else None
    return Description(
        kinds=tuple(
            AttentionKind("selective" if selects else "standard", selects, window)
            for window in layer_windows(family, config)
        ),
        vocab_size=config.vocab_size,
        context=config.max_position_embeddings,
        longest=learned,
        heads=config.num_attention_heads,
        budgets=settings.budgets,
        policy=settings.cache_policy,
        shift=settings.selection is None or settings.selection.shift,
        ends=end_tokens(config.eos_token_id),
    )
