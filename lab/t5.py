"""T5 with span corruption (the paper's appendix): a run's data and settings, a model whose decoder selects, its runs.

The paper takes "the standard T5 pre-training recipe and code from T5X": Adafactor, the inverse square root of the step
with 10,000 steps of warm-up (here from 0, there constant), 128 rows of 512 tokens, no dropout. It does not say which
T5: these are the sizes of the first (Raffel et al., 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from lab.scales import PAIR
from lab.spans import COUNT, Spans, SpanSamples, TextRows, sentinels_of, with_sentinels
from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError
from selattn.models.stock.families import FAMILIES, config_class, model_class
from selattn.models.stock.model import StockSettings
from selattn.ops import Selection
from selattn.training.config import (
    Batching,
    Checkpoints,
    Evaluation,
    Machine,
    Optimizer,
    RunConfig,
    Schedule,
    TextData,
)
from selattn.training.datasets import VALIDATION, Data, samples, stores_of
from selattn.training.model import Course, Ends, Made, check_course, check_memory

_FIELDS = ("d_model", "d_ff", "d_kv", "num_layers", "num_decoder_layers", "num_heads")


@dataclass(frozen=True)
class SpanData(TextData):
    """Span corruption of documents of text. Beside the settings of `TextData`:

    Args:
        layout: "packed": documents stand one after another, as in T5.
        context: tokens of the encoder's input; the decoder's are 0.22 times as many with T5's noise.
        noise: the share of the text that the decoder has to say.
        span: the mean length of a span of it.
    """

    kind: ClassVar[str] = "spans"

    layout: Literal["documents", "packed"] = "packed"
    noise: float = 0.15
    span: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout != "packed":
            raise SelattnError("data.layout of span corruption is packed: documents stand one after another, as in T5")
        self.spans()

    def spans(self) -> Spans:
        """How much of a row is noise."""
        return Spans(self.context, self.noise, self.span)


@dataclass(frozen=True)
class T5Settings:
    """The model of a run with span corruption. The encoder and the cross-attention never select.

    Args:
        attention: "selective" or "standard", of the decoder's self-attention.
        memory_epsilon: weight of the memory term in the loss.
        memory_tau: the clamp of M_i.
        vocab_size: tokens that the model knows; None is the tokenizer's, sentinels included.
        d_model: size of a token's state.
        d_ff: size of the hidden layer of an MLP.
        d_kv: size of a head.
        num_layers: layers of the encoder.
        num_decoder_layers: layers of the decoder.
        num_heads: of each attention.
        feed_forward_proj: "relu" as in the first T5, or "gated-gelu" as in T5 1.1.
        dropout_rate: 0 as in T5X's pre-training.
        tie_word_embeddings: whether the logits are made with the embeddings.
        cache_budgets: K_l of the decoder, in force in training, too; one number or one for each layer.
    """

    attention: Literal["selective", "standard"] = "selective"
    memory_epsilon: float = 0.0
    memory_tau: float = 1.0
    vocab_size: int | None = None
    d_model: int = 512
    d_ff: int = 2048
    d_kv: int = 64
    num_layers: int = 6
    num_decoder_layers: int = 6
    num_heads: int = 8
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    dropout_rate: float = 0.0
    tie_word_embeddings: bool = True
    cache_budgets: int | list[int] | None = None

    def __post_init__(self) -> None:
        for name in _FIELDS:
            if getattr(self, name) < 1:
                raise SelattnError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.dropout_rate < 1:
            raise SelattnError(f"model.dropout_rate must be in [0, 1), not {self.dropout_rate}")
        if self.memory_epsilon and self.attention == "standard":
            raise SelattnError("model.memory_epsilon weighs what is forgotten: set model.attention=selective")


def t5_settings(run: RunConfig) -> T5Settings:
    """The run's model; one line for a setting that T5 does not have, or that does not go with it."""
    try:
        chosen = T5Settings(**run.model)
    except TypeError as error:
        raise SelattnError(f"the model of {run.name}: {error}") from None
    if run.start.model is not None or run.start.ramp or run.shrink.steps:
        raise SelattnError(
            "a run with span corruption begins with new weights: leave start.model, start.ramp and shrink.steps out"
        )
    return chosen


def t5_config(run: RunConfig, tokenizer: Tokenizer | None) -> Any:
    """The config of the selective T5; a standard one is the same with nothing that selects."""
    assert isinstance(run.data, SpanData)
    chosen = t5_settings(run)
    needed = run.data.vocabulary + COUNT if tokenizer is None else tokenizer.vocab_size
    vocabulary = chosen.vocab_size or needed
    if vocabulary < needed:
        raise SelattnError(
            f"the data has {needed} tokens, sentinels included, and the model's vocabulary {vocabulary}: "
            "set model.vocab_size or data.vocabulary"
        )
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    if tokenizer is not None:
        special = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id}
        special["decoder_start_token_id"] = tokenizer.pad_id
    same = ("feed_forward_proj", "dropout_rate", "tie_word_embeddings")
    sizes = {name: getattr(chosen, name) for name in (*_FIELDS, *same)}
    config: Any = config_class(FAMILIES["t5"])(vocab_size=vocabulary, **sizes, **special)
    config.selattn = StockSettings(
        selection=Selection() if chosen.attention == "selective" else None,
        memory_epsilon=chosen.memory_epsilon,
        memory_tau=chosen.memory_tau,
        cache_budgets=chosen.cache_budgets,
        cache_policy="selective" if chosen.attention == "selective" else "window+4",
    ).to_dict()
    return config


def t5_ends(config: Any) -> Ends:
    """Where the course of a T5 ends; its layers are those of the decoder."""
    decoder = config.description
    return Ends(decoder.layers, decoder.selects, StockSettings.from_dict(config.selattn).strength, decoder.budgets)


@dataclass(frozen=True)
class T5Run(RunConfig):
    """A run with span corruption: its data are `SpanData`, its model settings `T5Settings`."""

    layer_class: ClassVar[str] = "T5Block"

    def maker(self) -> T5Models:
        """Makes T5 with new weights."""
        return T5Models()

    def model_settings(self) -> type:
        """The class whose fields `model.NAME` sets."""
        return T5Settings


class T5Models:
    """Makes the rows, and a T5 with new weights."""

    def settings(self, run: RunConfig) -> T5Settings:
        """The model's settings."""
        return t5_settings(run)

    def check(self, run: RunConfig) -> None:
        """By the sizes of encoder and decoder together; then its config and its course."""
        settings = t5_settings(run)
        assert isinstance(run.data, SpanData)
        layers = settings.num_layers + settings.num_decoder_layers
        vocabulary = settings.vocab_size or run.data.vocabulary
        layer = 4 * settings.num_heads * settings.d_kv + 2 * settings.d_ff
        check_memory(run, settings.d_model * (vocabulary + layers * layer), vocabulary)
        check_course(run, t5_ends(t5_config(run, None)))

    def prepare(self, run: RunConfig, progress: bool) -> Data:
        """Other noise in each pass over the training rows, and the same one whenever it is evaluated."""
        assert isinstance(run.data, SpanData)
        tokenizer, stores = stores_of(run.data, None, progress)
        tokenizer, spans = with_sentinels(tokenizer), run.data.spans()
        train, validation = (TextRows(store, spans.tokens) for store in stores.values())
        marks = (sentinels_of(tokenizer), tokenizer.eos_id)
        return Data(
            SpanSamples(train, spans, *marks, run.seed, samples(run)),
            {"validation": SpanSamples(validation, spans, *marks, VALIDATION)},
            tokenizer=tokenizer,
            checksums={split: store.checksum for split, store in stores.items()},
        )

    def make(self, run: RunConfig, tokenizer: Tokenizer | None) -> Made:
        """With new weights."""
        config = t5_config(run, tokenizer)
        ends = t5_ends(config)
        check_course(run, ends)
        return Made(model_class(FAMILIES["t5"])(config), Course(run, ends))


SIZES = {
    "small": {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 8},
    "base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12},
    "large": {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 16},
}
TINY = {"d_model": 128, "d_ff": 384, "d_kv": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
_T5X = Optimizer(kind="adafactor", lr=0.01, weight_decay=0.0, clip=0.0)


def at_paper_scale(name: str, size: dict[str, Any], kind: str) -> RunConfig:
    """A run of the appendix. T5's own tokenizer can be given as data.tokenizer; else one of its size is trained."""
    return T5Run(
        name,
        data=SpanData(source="c4", vocabulary=32_000, context=512),
        model={"attention": kind, **size, "vocab_size": 32_128},
        optimizer=_T5X,
        schedule=Schedule(steps=524_288, warmup=10_000, decay="inverse_sqrt"),
        batch=Batching(size=128),
        evaluation=Evaluation(every=8_192, rows=8_192),
        machine=Machine(precision="bf16"),
    )


def tiny(name: str, kind: str) -> RunConfig:
    """Two layers each way, 128 tokens in and 29 out: minutes on a laptop, on the text that comes with Python."""
    return T5Run(
        name,
        data=SpanData(vocabulary=3072, context=128),
        model={"attention": kind, **TINY},
        optimizer=Optimizer(kind="adafactor", lr=0.02, weight_decay=0.0),
        schedule=Schedule(steps=400, warmup=40, decay="linear"),
        batch=Batching(size=16),
        evaluation=Evaluation(every=50, rows=256, batch=32),
        checkpoints=Checkpoints(every=100),
        log_every=20,
    )


RUNS: dict[str, Callable[[], RunConfig]] = {
    **{
        f"c4-t5-{size}-{kind}": partial(at_paper_scale, f"c4-t5-{size}-{kind}", sizes, kind)
        for size, sizes in SIZES.items()
        for kind in PAIR
    },
    **{f"t5-tiny-{kind}": partial(tiny, f"t5-tiny-{kind}", kind) for kind in PAIR},
}
