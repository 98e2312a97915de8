"""The class of a stock model that was made selective: budgets, a cache that keeps F, and the memory loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from selattn.cache import Budgets, Policy
from selattn.errors import SelattnError
from selattn.models.base import Recomputing, check_loading
from selattn.models.config import check_settings
from selattn.models.form import NewForm, add_forms
from selattn.models.forward import OPTIONS, Pass, PassOptions, PrunedGeneration, begin, evicted_rows
from selattn.models.inputs import Told, one_of
from selattn.models.outputs import (
    kept_fractions,
    kept_tokens,
    next_tokens,
    selective_output,
    share_of_labels,
    with_memory_term,
)
from selattn.models.protocols import AttentionKind, Description, LayerView, end_tokens
from selattn.models.stock.attention import NAME, PASS
from selattn.models.stock.families import check_config, family_of_config, layer_windows
from selattn.ops import Rules, Selection


@dataclass(frozen=True)
class StockSettings:
    """The settings that make a stock model selective, in the model's config under `selattn`.

    Attributes:
        selection: which head selects, the constraints and the shift; None: nothing selects, the cache only evicts.
        form: the form that selects in place of a head; None for a head.
        strength: multiplies S.
        memory_epsilon: weight of the memory term in the loss.
        memory_tau: the clamp of M_i.
        cache_budgets: K_l, in force unless others are given.
        cache_policy: which token is evicted when a layer is full.
        backend: which implementation runs.
    """

    selection: Selection | None = None
    form: NewForm | None = None
    strength: float = 1.0
    memory_epsilon: float = 0.0
    memory_tau: float = 1.0
    cache_budgets: int | list[int] | None = None
    cache_policy: str = "selective"
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def budgets(self) -> Budgets | None:
        """K_l as an object."""
        return Budgets.of(self.cache_budgets)

    @property
    def rules(self) -> Rules:
        """The rules of all layers."""
        return Rules(self.selection, self.strength, tau=self.memory_tau)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "cache_budgets": None if self.budgets is None else self.budgets.to_json()}

    @classmethod
    def from_dict(cls, saved: Any) -> StockSettings:
        """The settings that `to_dict` wrote; one line for anything else."""
        try:
            chosen, form = saved.get("selection"), saved.get("form")
            if chosen is not None:
                head = chosen["head"]
                chosen = Selection(**{**chosen, "head": tuple(head) if isinstance(head, list) else head})
            return cls(**{**saved, "selection": chosen, "form": None if form is None else NewForm(**form)})
        except (AttributeError, KeyError, TypeError) as error:
            raise SelattnError(f"the config's settings of selattn cannot be read: {error}") from None


class StockBase(PrunedGeneration, Recomputing):
    """The base of all models that were made selective. It stands before a class of transformers."""

    config: Any
    training: bool
    __call__: Callable[..., Any]

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        check_config(config, type(self).__name__)
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]  # of the class that stands behind it
        self.equip()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; from safetensors only, and whole or sharded by FSDP2, but not split up."""
        check_loading(kwargs)
        return super().from_pretrained(*args, **kwargs)  # type: ignore[misc]

    def equip(self) -> None:
        """Add to the stock model what makes it selective."""
        raise NotImplementedError

    def unequip(self) -> None:
        """Undo `equip`, but for the selecting forms."""
        raise NotImplementedError

    @property
    def settings(self) -> StockSettings:
        """The settings of the config, which is parsed again only after a change."""
        parsed = self.__dict__.get("_selattn_parsed")
        if parsed is None or parsed[0] != self.config.selattn:
            parsed = (copy.deepcopy(self.config.selattn), StockSettings.from_dict(self.config.selattn))
            self.__dict__["_selattn_parsed"] = parsed
        settings: StockSettings = parsed[1]
        return settings

    def wants_cache(self) -> bool:
        """Whether a pass makes a cache unless it is told."""
        return bool(self.config.use_cache) and not self.training

    def own_eviction(self) -> tuple[Budgets | None, str | Policy]:
        """Budgets and policy of the config."""
        return self.settings.budgets, self.settings.cache_policy

    @property
    def selects(self) -> bool:
        """Whether there is a selection."""
        return self.settings.selection is not None

    @property
    def description(self) -> Description:
        """The model without its weights, from the config alone."""
        described: Description = self.config.description
        return described

    def begin(
        self, x: Tensor, told: Told, kwargs: dict[str, Any], cache: Any, use_cache: bool | None, labels: Tensor | None
    ) -> Pass:
        """Decide how a pass over x [B, N, ...] runs; its options are taken out of `kwargs`."""
        options: Any = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        settings = self.settings
        return begin(
            self,
            x,
            told,
            options,
            rules=settings.rules,
            backend=settings.backend,
            cache=cache,
            use_cache=use_cache,
            attentions=kwargs.get("output_attentions"),
            learns=labels is not None and settings.selection is not None,
        )

    def finish(self, stock: Any, now: Pass, x: Tensor, share: Tensor | float, return_dict: bool | None) -> Any:
        """The stock model's output with the memory term in the loss, F and evictions.

        Args:
            stock: the output of the stock model; with a loss if there were labels.
            now: the pass, with the results of the layers.
            x: [B, N, ...] the tokens that attended.
            share: of the labels of a whole step, which weighs this batch's memory term.
            return_dict: None for the config's.
        """
        kind: Any = type(stock)
        result = selective_output(kind)(**stock)
        layers = [now.results[layer] for layer in sorted(now.results)]
        kept = None
        if now.wanted.memory:
            memory = [
                None if each.aux.memory is None else kept_tokens(each.aux.memory, now.sequences) for each in layers
            ]
            kept = kept_fractions(memory, x, now.sequences)
            result["kept"] = kept.detach()
        if result.get("loss") is not None:
            for name, value in with_memory_term(result.loss, kept, self.settings.memory_epsilon, share).items():
                result[name] = value
        if now.wanted.f:
            result["f"] = tuple(each.aux.f for each in layers)
        if now.evictions:
            result["evicted_at"] = evicted_rows((each.evicted_at for each in layers), x)
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()


class StockSelective(StockBase):
    """A decoder: `class SelectiveLlamaForCausalLM(StockSelective, LlamaForCausalLM)`."""

    def equip(self) -> None:
        """Our attention function, and a selecting form in each layer if the settings have one."""
        family, model, layers = family_of_config(self.config), self, self.config.num_hidden_layers
        modules: Any = model
        attention = [module for module in modules.modules() if type(module).__name__ == family.attention]
        if len(attention) != layers:
            raise SelattnError(f"{type(self).__name__} has {len(attention)} attention layers, not {layers}")
        add_forms(attention, self.settings.form, self.config)
        self.set_attn_implementation(NAME)

    def unequip(self) -> None:
        """Nothing: the attention function goes with the class."""

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and all layers."""
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
        return_dict: bool | None = None,
        **kwargs: Unpack[PassOptions],
    ) -> Any:
        """As in the stock model, with the options of `selattn.models.forward.PassOptions`.

        The output has `lm_loss`, `memory_loss`, `kept`, `f` and `evicted_at` beside the stock model's fields, where
        they are asked for. Nothing crosses a sequence's border, so the loss predicts nothing across it either.
        """
        x = one_of(input_ids, inputs_embeds)
        more: dict[str, Any] = {name: value for name, value in kwargs.items() if value is not None}
        told = Told(attention_mask, position_ids, more.get("cu_seq_lens_q"), more.get("seq_idx"))
        now = self.begin(x, told, more, past_key_values, use_cache, labels)
        if labels is not None and now.sequences is not None:
            more["shift_labels"] = next_tokens(labels, now.sequences)
        if isinstance(logits_to_keep, Tensor) or logits_to_keep:
            more["logits_to_keep"] = logits_to_keep
        if num_items_in_batch is not None:
            more["num_items_in_batch"] = num_items_in_batch
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
            **more,
        )
        if now.wanted.weights:
            result["attentions"] = now.over_tokens(result.attentions)
        share = 1.0 if labels is None else share_of_labels(next_tokens(labels), num_items_in_batch)
        return self.finish(result, now, x, share, return_dict)

    def states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache_budgets: Budgets | None = None,
        cache_policy: Policy | None = None,
    ) -> Tensor:
        """The input of `head`, [B, N, d_model]: a forward that makes the logits of the last token only."""
        states: list[Tensor] = []
        model: Any = self
        hook = model.base_model.register_forward_hook(lambda module, args, output: states.append(output[0]))
        told = {"attention_mask": attention_mask, "position_ids": position_ids}
        limits = {"cache_budgets": cache_budgets, "cache_policy": cache_policy}
        try:
            self(input_ids, use_cache=False, logits_to_keep=1, **told, **limits)
        finally:
            hook.remove()
        return states[0]

    def head(self, states: Tensor) -> Tensor:
        """The logits, [..., V], of some of these states."""
        model: Any = self
        logits: Tensor = model.get_output_embeddings()(states)
        cap = getattr(self.config, "final_logit_softcapping", None)  # Gemma's
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def watch(self, input_ids: Tensor, weights: bool = True) -> Iterator[LayerView]:
        """F and attention weights of each layer, without budgets."""
        result = self(input_ids, use_cache=False, output_f=True, output_attentions=weights or None)
        for layer, f in enumerate(result.f):
            yield LayerView(f, result.attentions[layer] if weights else None)

    def evictions(self, input_ids: Tensor, budgets: Budgets, policy: Policy) -> Sequence[Tensor]:
        """The row from which each token is evicted, [B, P, N] of each layer."""
        limits = {"cache_budgets": budgets, "cache_policy": policy}
        rows: Sequence[Tensor] = self(input_ids, use_cache=False, output_evictions=True, **limits).evicted_at
        return rows


def describe(config: Any) -> Description:
    """The model of a selective config, without its weights; of a T5, the decoder."""
    settings, family = StockSettings.from_dict(config.selattn), family_of_config(config)
    selects = settings.selection is not None
    windows = [None] * config.num_decoder_layers if family.seq2seq else layer_windows(family, config)
    context = (
        512 if family.seq2seq else config.max_position_embeddings
    )  # T5 has no longest text, and was trained on 512
    return Description(
        kinds=tuple(AttentionKind("selective" if selects else "standard", selects, window) for window in windows),
        vocab_size=config.vocab_size,
        context=context,
        longest=context if family.model_type == "gpt2" else None,
        heads=config.num_attention_heads,
        budgets=settings.budgets,
        policy=settings.cache_policy,
        shift=settings.selection is None or settings.selection.shift,
        ends=() if family.seq2seq else end_tokens(config.eos_token_id),
    )
