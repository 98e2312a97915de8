"""The configuration of the paper's decoder, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig

from selattn.cache import Budgets, make_policy
from selattn.errors import SelattnError, advice
from selattn.models.protocols import AttentionKind, Description, end_tokens, layer_kinds
from selattn.models.rope import read_rope, without_replaced
from selattn.ops import Selection, backends

_CHOICES = {
    "positions": ("learned", "rotary"),
    "norm": ("rmsnorm", "layernorm"),
    "mlp": ("swiglu", "gelu"),
    "selection_source": ("head", "separate", "new"),
}
_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "max_position_embeddings"),
)
_SWITCHES = (
    *("qk_norm", "bias", "tie_word_embeddings", "use_cache", "selection_relu"),
    *("selection_protect_first", "selection_protect_self", "selection_shift"),
)
_POSITIVE = (lambda x: 0 < x < math.inf, "above 0")
_PROBABILITY = (lambda x: 0 <= x < 1, "of at least 0 and below 1")
_SHARE = (lambda x: 0 <= x <= 1, "in [0, 1]")
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "rope_theta": _POSITIVE,
    "norm_eps": _POSITIVE,
    "initializer_range": _POSITIVE,
    "memory_tau": _POSITIVE,
    "attention_dropout": _PROBABILITY,
    "hidden_dropout": _PROBABILITY,
    "selection_strength": _SHARE,
    "strength": _SHARE,  # as the settings of a stock model call it
    "memory_epsilon": (lambda x: 0 <= x < math.inf, "of at least 0"),
}
# What transformers itself puts into a config beside the fields.
_FOREIGN = {
    *("model_type", "name_or_path", "_name_or_path", "attn_implementation", "experts_implementation", "torch_dtype"),
    *("output_attentions", "num_labels", "auto_map", "quantization_config", "_commit_hash", "per_layer_config"),
    "gguf_file",  # lm-eval's
    *("_attn_implementation_internal", "_experts_implementation_internal", "tokenizer_class", "task_specific_params"),
}


class SelectiveConfig(PreTrainedConfig):
    """Everything that decides what a `SelectiveForCausalLM` computes. The defaults are the paper's section 5.

    Args:
        vocab_size: tokens in the vocabulary.
        hidden_size: d_model; `from_d(d)` gives the paper's 64 d.
        num_hidden_layers: L, the number of layers.
        num_attention_heads: query heads, free of d_model: the head size stays (the paper's "extra heads").
        num_key_value_heads: fewer key-value heads (GQA); None is as many as query heads.
        head_dim: size of a head.
        intermediate_size: hidden size of the MLP; None is floor(8 / 3 d_model) for SwiGLU and 4 d_model for GELU.
        max_position_embeddings: the context size; with learned positions no sequence can be longer.
        attention: kind of attention of each layer, repeated over the layers. See `selattn.models.protocols`.
        positions: "learned" or "rotary".
        rope_theta: the base of the rotary frequencies, 10000 unless given.
        rope_parameters: their scaling, as in transformers (also under its older name, rope_scaling), of the type
            linear, dynamic, yarn or llama3; see `selattn.models.rope`. With "dynamic" they depend on the longest
            sequence of a pass, so that past `max_position_embeddings` a cache, whose keys stay as they were, gives
            other logits than a whole pass. So it is in transformers.
        norm: "rmsnorm" or "layernorm".
        norm_eps: added to the variance.
        qk_norm: RMSNorm over the head size on q and k, one gain for all heads.
        mlp: "swiglu" or "gelu" (GPT-2's tanh approximation).
        bias: whether linear layers (and LayerNorms) have a bias.
        tie_word_embeddings: whether the output projection is the embedding.
        attention_dropout: on attention weights. The paper uses none.
        hidden_dropout: on embeddings and on what each block adds. The paper uses none.
        initializer_range: standard deviation of the initial weights (the paper does not give one).
        selection_source: "head" (S is a head's logits), "separate" (a bilinear form of its own, the paper's), or "new"
            (with a bias that at first forgets nothing, see `NewForm`, and with as many masks as selection_head has).
        selection_head: the selecting head, or a list of them: then each equal group of heads follows its own.
        selection_relu: constraint 1: negative selection logits count for nothing.
        selection_protect_first: constraint 2: nothing masks the first token.
        selection_protect_self: constraint 3: no token masks itself.
        selection_shift: selection counts for later queries only.
        selection_strength: multiplies S, in [0, 1].
        memory_epsilon: weight of the memory term in the loss; the paper's L_mem uses 0.1, 0 leaves it out.
        memory_tau: tau of M_i.
        cache_budgets: K_l, how many tokens each layer may keep: one number, or one for each layer; None is no limit.
            In force in decoding and, with the same result, in every full forward.
        cache_policy: which token is evicted when a layer is full, see `selattn.cache.POLICIES`.
        backend: the attention backend, see `selattn.ops.backends()`.
        use_cache: whether a forward returns a cache.
        pad_token_id: of padding.
        bos_token_id: of <BOS>.
        eos_token_id: what ends a text, or a list of such tokens.
    """

    model_type = "selattn"
    keys_to_ignore_at_inference = ["past_key_values", "lm_loss", "memory_loss", "kept", "f"]  # noqa: RUF012

    vocab_size: int = 8000
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int = 64
    intermediate_size: int | None = None
    max_position_embeddings: int = 512
    attention: list[str] | tuple[str, ...] | str = ("selective",)
    positions: str = "learned"
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None
    norm: str = "rmsnorm"
    norm_eps: float = 1e-6
    qk_norm: bool = True
    mlp: str = "swiglu"
    bias: bool = False
    tie_word_embeddings: bool = False
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    initializer_range: float = 0.02
    selection_source: str = "head"
    selection_head: int | list[int] = 0
    selection_relu: bool = True
    selection_protect_first: bool = True
    selection_protect_self: bool = True
    selection_shift: bool = True
    selection_strength: float = 1.0
    memory_epsilon: float = 0.0
    memory_tau: float = 1.0
    cache_budgets: int | list[int] | None = None
    cache_policy: str = "selective"
    backend: str = "auto"
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        scaling = kwargs.pop("rope_scaling", None)
        self._refuse_unknown(kwargs)
        self.attention = [self.attention] if isinstance(self.attention, str) else list(self.attention)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 8 * self.hidden_size // 3 if self.mlp == "swiglu" else 4 * self.hidden_size
        theta, rope = read_rope(self.rope_theta, self.rope_parameters, scaling, self.max_position_embeddings)
        self.rope_parameters = None
        super().__post_init__(**kwargs)
        self.rope_theta, self.rope_parameters = theta, rope
        if self.positions != "rotary" and rope["rope_type"] == "default":
            self.rope_parameters = None  # which transformers filled in: there is nothing to rotate
        self.check()

    @classmethod
    def from_d(cls, d: int, vocab_size: int = 8000, **changes: Any) -> SelectiveConfig:
        """The paper's model of size d: d_model = 64 d, and d layers of d heads."""
        sizes = {"hidden_size": 64 * d, "num_hidden_layers": d, "num_attention_heads": d}
        return cls(vocab_size=vocab_size, **{**sizes, **changes})

    @classmethod
    def gpt2(cls, **changes: Any) -> SelectiveConfig:
        """GPT-2's exact architecture: LayerNorm, GELU, biases, tied embeddings, no QK norm. Sizes are GPT-2 small's."""
        variant = {"norm": "layernorm", "norm_eps": 1e-5, "mlp": "gelu", "bias": True, "tie_word_embeddings": True}
        sizes = {"vocab_size": 50257, "max_position_embeddings": 1024, "qk_norm": False}
        return cls(**{**variant, **sizes, **changes})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers; but what is changed on the way is checked like the rest, also for mistyped names."""
        own = {field.name for field in dataclasses.fields(cls)} - {
            field.name for field in dataclasses.fields(PreTrainedConfig)
        } | {"rope_scaling"}
        changes = {name: kwargs.pop(name) for name in own & set(kwargs)}
        config_dict = without_replaced(config_dict, changes)
        wants_unused = kwargs.pop("return_unused_kwargs", False)
        config, unused = super().from_dict({**config_dict, **changes}, return_unused_kwargs=True, **kwargs)
        if wants_unused:
            return config, unused
        cls._refuse_unknown(unused)
        return config

    @property
    def kinds(self) -> list[AttentionKind]:
        """The attention kind of each layer."""
        return layer_kinds(list(self.attention), self.num_hidden_layers)

    @property
    def selects(self) -> bool:
        """Whether any layer selects."""
        return any(kind.selective for kind in self.kinds)

    @property
    def budgets(self) -> Budgets | None:
        """The budgets in their checked form; None for no limit."""
        return Budgets.of(self.cache_budgets)

    @property
    def selection(self) -> Selection:
        """The selection switches, as the operator takes them."""
        head = self.selection_head
        return Selection(
            head=head if isinstance(head, int) else tuple(head),
            relu=self.selection_relu,
            protect_first=self.selection_protect_first,
            protect_self=self.selection_protect_self,
            shift=self.selection_shift,
        )

    @property
    def description(self) -> Description:
        """The model without its weights, for evaluation, search and pictures."""
        return Description(
            kinds=tuple(self.kinds),
            vocab_size=self.vocab_size,
            context=self.max_position_embeddings,
            longest=self.max_position_embeddings if self.positions == "learned" else None,
            heads=self.num_attention_heads,
            budgets=self.budgets,
            policy=self.cache_policy,
            shift=self.selection_shift,
            ends=end_tokens(self.eos_token_id),
        )

    @classmethod
    def _refuse_unknown(cls, kwargs: dict[str, Any]) -> None:
        """A mistyped setting must not be silently stored, as transformers would."""
        known = [field.name for field in dataclasses.fields(cls)]
        generation = GenerationConfig._get_default_generation_params()
        for name in kwargs:
            if name not in _FOREIGN and name not in generation:
                hint = advice(name, known, "see selattn.models.SelectiveConfig for what there is")
                raise SelattnError(f"unknown setting {name!r} in a selattn config: {hint}")

    def check(self) -> None:
        """One clear line for each thing that cannot work."""
        self._check_types()
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise SelattnError(f"{name} must be {' or '.join(choices)}, not {getattr(self, name)!r}")
        if self.budgets is not None:
            self.budgets.for_layers(self.num_hidden_layers)
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if groups is None or heads % groups:
            raise SelattnError(f"{heads} heads cannot be shared out among {groups} key-value heads: not a multiple")
        if self.positions == "rotary" and self.head_dim % 2:
            raise SelattnError(f"rotary positions need an even head_dim, not {self.head_dim}")
        if self.positions == "rotary" or self.rope_parameters is not None:
            self._check_rope()
        if not self.attention:
            raise SelattnError("attention is an empty list: name at least one kind, such as 'selective'")
        masks = self.selection.heads
        if self.selects and self.selection_source != "separate" and (max(masks) >= heads or heads % len(masks)):
            raise SelattnError(
                f"selection_head {self.selection_head} does not fit {heads} heads: each must exist, "
                "and their number must divide that of the heads"
            )
        if self.selection_source == "separate" and self.selection_head != 0:
            raise SelattnError("selection_head has no meaning with selection_source='separate': leave it at 0")

    def _check_rope(self) -> None:
        """Again, since it can be changed after the config was made."""
        if self.positions != "rotary":
            raise SelattnError("rope_parameters are for rotary positions, and these are learned: leave them out")
        _, self.rope_parameters = read_rope(self.rope_theta, self.rope_parameters, None, self.max_position_embeddings)
        if self.rope_parameters["rope_type"] == "dynamic" and self.head_dim < 4:
            raise SelattnError(f"dynamic scaling needs a head_dim of at least 4, not {self.head_dim}")

    def _check_types(self) -> None:
        """Whole numbers, switches, and numbers in their ranges; JSON files are written by hand, too."""
        for name in _SIZES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SelattnError(f"{name} must be a whole number of at least 1, not {value!r}")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise SelattnError(f"{name} must be true or false, not {getattr(self, name)!r}")
        check_settings(self)


def check_settings(settings: Any) -> None:
    """Check the settings that our decoder and a stock model share."""
    there = vars(settings)
    for name in [name for name in _RANGES if name in there]:
        value, (holds, rule) = there[name], _RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
            raise SelattnError(f"{name} must be a number {rule}, not {value!r}")
    if settings.backend != "auto" and settings.backend not in backends():
        raise SelattnError(f"unknown backend {settings.backend!r}: choose auto, {', '.join(backends())}")
    if not isinstance(settings.cache_policy, str):
        raise SelattnError(
            f"a config names its policy, and cache_policy is a {type(settings.cache_policy).__name__}: "
            "give that to forward or generate"
        )
    make_policy(settings.cache_policy)
    Budgets.of(settings.cache_budgets)
