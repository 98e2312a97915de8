"""A run: frozen settings from the model to the last checkpoint.

Everything that can change a result is in here and goes into the training record. Where the paper leaves a choice open
(marked "open" below), docs/training.md says why it is made this way. The entries under `Args:` are what
`selattn train RUN --show` says of each setting.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from selattn.data.sources import Reading
from selattn.data.task import Task
from selattn.errors import SelattnError, advice, shortened

if TYPE_CHECKING:
    from selattn.training.model import Maker

_LARGEST = 10**15  # of any setting: their products are counted in 64 bits
_MOST_WORKERS, _MOST_LAYERS = 1024, 100_000


def _at_least(settings: Any, where: str, **least: float) -> None:
    """One line for a setting that is too small, not finite, or larger than a count can be."""
    for name, bound in least.items():
        value = getattr(settings, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise SelattnError(f"{where}.{name} must be a finite number, not {value}")
        if value < bound:
            raise SelattnError(f"{where}.{name} must be at least {bound}, not {value}")
        if isinstance(value, int) and value > _LARGEST:
            raise SelattnError(f"{where}.{name} must be at most {_LARGEST:,}, not {shortened(value)}")


@dataclass(frozen=True)
class TextData:
    """Documents of text as training data.

    Args:
        source: what `selattn.data.sources.documents` takes: a name (c4, wikitext, lm1b, embedded), a file or a folder.
        column: where `.jsonl` files and the hub have the text.
        separator: what stands between the documents of a `.txt` file, see `selattn.data.sources.Reading`.
        limit: the most documents that are read; None for all.
        validation: the share of documents that is held out, where the source has no validation part of its own.
        tokenizer: a folder with a tokenizer, or a SentencePiece model; None trains one on the training documents, or
            with `start.model` takes the model's own.
        vocabulary: tokens of a trained tokenizer; a given one must have as many.
        layout: "documents" is the paper's, one document in each row, cut or padded; "packed" fills the rows.
        context: tokens in a row.
    """

    kind: ClassVar[str] = "text"  # what a record calls this data

    source: str = "embedded"
    column: str = "text"
    separator: str = "blank"
    limit: int | None = None
    validation: float = 0.02
    tokenizer: str | None = None
    vocabulary: int = 8000
    layout: Literal["documents", "packed"] = "documents"
    context: int = 512

    def __post_init__(self) -> None:
        _at_least(self, "data", vocabulary=1, context=2)
        self.reading()

    def reading(self) -> Reading:
        """How the source is read."""
        return Reading(self.column, self.separator, self.validation, self.limit)


@dataclass(frozen=True)
class Optimizer:
    """AdamW. The paper: 0.9, 0.999 and a learning rate of 0.005.

    Args:
        kind: "adamw"; or "adafactor", T5's, whose steps are relative to the size of a weight.
        lr: the peak of the learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: AdamW's epsilon (open: torch's default).
        weight_decay: on matrices, not on norms (open).
        clip: the largest norm of the gradient; 0 is no clipping (open).
    """

    kind: Literal["adamw", "adafactor"] = "adamw"
    lr: float = 0.005
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        _at_least(self, "optimizer", lr=0, eps=0, weight_decay=0, clip=0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise SelattnError(f"optimizer.{name} must be in [0, 1), not {getattr(self, name)}")
        if self.kind == "adafactor":
            for name in ("beta1", "beta2", "eps"):
                if getattr(self, name) != getattr(Optimizer, name):
                    raise SelattnError(f"optimizer.{name} belongs to AdamW: leave it out with adafactor")


@dataclass(frozen=True)
class Schedule:
    """Steps and learning rate. The paper: 524,288 steps, 1,000 of linear warm-up, cosine.

    Args:
        steps: optimizer steps in all.
        warmup: steps in which the learning rate rises from 0.
        decay: what follows; "inverse_sqrt" is the peak times sqrt(warmup / step), as in T5.
        final: the last learning rate as a share of the peak (open: 0).
    """

    steps: int = 524_288
    warmup: int = 1_000
    decay: Literal["cosine", "linear", "constant", "inverse_sqrt"] = "cosine"
    final: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, "schedule", steps=1, warmup=0)
        if self.decay == "inverse_sqrt" and not self.warmup:
            raise SelattnError("schedule.decay=inverse_sqrt is measured in warm-up steps: set schedule.warmup")
        if not 0 <= self.final <= 1:
            raise SelattnError(f"schedule.final must be in [0, 1], not {self.final}")


@dataclass(frozen=True)
class Batching:
    """Rows of a step.

    Args:
        size: rows of one optimizer step, over all devices and accumulated gradients.
        micro: rows that one device takes at once; None is its whole share of the step.
        workers: processes that prepare rows; 0 prepares them in the training process.
    """

    size: int = 256
    micro: int | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        _at_least(self, "batch", size=1, workers=0)
        if self.workers > _MOST_WORKERS:
            raise SelattnError(f"batch.workers must be at most {_MOST_WORKERS} processes, not {self.workers:,}")
        if self.micro is not None:
            _at_least(self, "batch", micro=1)

    def split(self, devices: int) -> tuple[int, int]:
        """Rows of a micro batch on one device, and micro batches in a step."""
        micro = self.micro or self.size // devices
        if micro < 1 or self.size % (micro * devices):
            raise SelattnError(
                f"batch.size {self.size} cannot be shared out: {devices} device(s) with micro batches of {micro} "
                "must divide it; change batch.size or batch.micro"
            )
        return micro, self.size // (micro * devices)


@dataclass(frozen=True)
class Evaluation:
    """Evaluation during training.

    Args:
        every: steps between evaluations; there is always one at the end.
        rows: rows of each validation set, or all if there are fewer.
        batch: rows that one device takes at once.
        target: a task's run ends when this accuracy is reached in distribution.
    """

    every: int = 1_000
    rows: int = 2_048
    batch: int = 32
    target: float | None = None

    def __post_init__(self) -> None:
        _at_least(self, "evaluation", every=1, rows=1, batch=1)
        if self.target is not None and not 0 < self.target <= 1:
            raise SelattnError(f"evaluation.target must be in (0, 1], not {self.target}")


@dataclass(frozen=True)
class Checkpoints:
    """When a run is saved, to be resumed from there.

    Args:
        every: steps between checkpoints; there is always one at the end.
        keep: how many of the newest stay.
    """

    every: int = 1_000
    keep: int = 2

    def __post_init__(self) -> None:
        _at_least(self, "checkpoints", every=1, keep=1)


@dataclass(frozen=True)
class Start:
    """Where the weights come from.

    Args:
        model: a trained model to fine-tune, a folder or zoo:NAME; None starts with new weights.
        ramp: steps in which the selection strength rises from 0 to the model's own: a standard model becomes selective.
            Only with `model`.
    """

    model: str | None = None
    ramp: int = 0

    def __post_init__(self) -> None:
        _at_least(self, "start", ramp=0)


@dataclass(frozen=True)
class Shrink:
    """Budgets that shrink during training, to those of `model.cache_budgets`, which stay in force afterwards.

    Args:
        steps: in how many steps; with 0 the final budgets are in force from the beginning.
        every: steps between changes: 1 is a line, more are stairs (with machine.compile each stair is compiled).
        first: the budgets to begin with, one number or one for each layer; None is the context size, so that nothing
            is evicted at first.
    """

    steps: int = 0
    every: int = 1
    first: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _at_least(self, "shrink", steps=0, every=1)
        if isinstance(self.first, list):  # as the command line has it
            object.__setattr__(self, "first", tuple(self.first))


@dataclass(frozen=True)
class Machine:
    """How it is computed: none of these changes the result, beyond rounding.

    Args:
        precision: "bf16" computes under autocast; weights and optimizer stay fp32.
        compile: torch.compile.
        recompute: gradient checkpointing: activations are computed again in the backward pass.
        shard: "fsdp" shards weights, gradients and optimizer over the devices (FSDP2); "none" is DDP.
    """

    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    recompute: bool = False
    shard: Literal["none", "fsdp"] = "none"


# Settings that fine-tuning cannot change: the weights are made for them.
ARCHITECTURE = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "max_position_embeddings", "positions", "rope_theta", "norm", "norm_eps", "qk_norm", "mlp"),
    *("bias", "tie_word_embeddings"),
)


@dataclass(frozen=True)
class RunConfig:
    """A whole run.

    Args:
        name: of the run.
        model: settings of `SelectiveConfig`.
            The vocabulary and the context size follow from the data unless given;
            with `start.model` these settings change those of that model, except for its architecture.
        data: text, or a synthetic task.
        seed: of the initial weights, of dropout and of the order of the data.
        log_every: steps between records in the log.
    """

    layer_class: ClassVar[str] = "SelectiveDecoderLayer"  # the module that FSDP wraps

    name: str
    data: TextData | Task
    model: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    batch: Batching = Batching()
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    start: Start = Start()
    shrink: Shrink = Shrink()
    machine: Machine = Machine()
    seed: int = 0
    log_every: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", MappingProxyType(dict(self.model)))  # a frozen copy
        _at_least(self, "run", seed=0, log_every=1)
        if (layers := self.model.get("num_hidden_layers", 1)) > _MOST_LAYERS:
            raise SelattnError(f"model.num_hidden_layers must be at most {_MOST_LAYERS:,}, not {shortened(layers)}")
        if self.schedule.steps * self.batch.size >= 2**63:
            raise SelattnError(
                f"schedule.steps {self.schedule.steps:,} times batch.size {self.batch.size:,} is more than can be "
                "counted: make one of them smaller"
            )
        if self.seed >= 2**32:
            raise SelattnError(f"run.seed must be below 2^32, as numpy has it, not {self.seed}")
        if self.evaluation.target is not None and isinstance(self.data, TextData):
            raise SelattnError("evaluation.target is an accuracy, which only a task has: leave it out for text")

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it. Equal dictionaries are equal runs."""
        whole: dict[str, Any] = {}
        for at in dataclasses.fields(self):
            value = getattr(self, at.name)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                value = dataclasses.asdict(value)
            if isinstance(value, Mapping):
                value = {key: list(item) if isinstance(item, tuple) else item for key, item in value.items()}
            whole[at.name] = value
        kind = self.data.kind if isinstance(self.data, TextData) else self.data.name
        whole["data"] = {"kind": kind, **whole["data"]}
        return whole

    def maker(self) -> Maker:
        """Makes the data and the model of the run; a subclass for another kind of model has its own."""
        from selattn.training.model import Decoders

        return Decoders()

    def model_settings(self) -> type:
        """The class whose fields `model.NAME` sets."""
        from selattn.models import SelectiveConfig

        return SelectiveConfig


def changed(run: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The run with other settings, by their dotted names: `{"optimizer.lr": 1e-3}`.

    A run that is given a model to start from keeps those of its own model settings that fine-tuning can change.
    """
    known = fields(run)
    for name in sorted(settings, key=lambda name: name != "start.model"):
        check_field(name, known)
        run = _replaced(run, name.split("."), settings[name])
        if name == "start.model" and run.start.model is not None:
            kept = {key: value for key, value in run.model.items() if key not in ARCHITECTURE}
            run = dataclasses.replace(run, model=kept)
    return run


def fields(run: RunConfig) -> dict[str, Any]:
    """Every field that can be set, as a dotted name, with its type."""
    kinds: dict[str, Any] = {}
    for at in dataclasses.fields(run):
        value = getattr(run, at.name)
        if at.name == "model":
            own = inspect.get_annotations(run.model_settings(), eval_str=True)  # without what transformers puts in
            kinds |= {f"model.{key}": kind for key, kind in own.items()}
        elif dataclasses.is_dataclass(value):
            hints = typing.get_type_hints(type(value))
            kinds |= {f"{at.name}.{each.name}": hints[each.name] for each in dataclasses.fields(value)}
        elif at.name != "name":
            kinds[at.name] = typing.get_type_hints(type(run))[at.name]
    return kinds


def check_field(name: str, known: Iterable[str]) -> None:
    """Raise for an unknown field, with the nearest one; a name without its section (`lr`) finds the whole name."""
    if name in known:
        return
    ends = [full for full in known if full.rpartition(".")[2] == name.rpartition(".")[2]]
    hint = advice(ends[0] if ends else name, known, "see 'selattn train RUN --show' for all fields")
    raise SelattnError(f"unknown field {shortened(name)!r}; {hint}")


def _replaced(of: Any, path: Sequence[str], value: Any) -> Any:
    first, *rest = path
    if isinstance(of, Mapping):
        return {**of, first: value}
    return dataclasses.replace(of, **{first: _replaced(getattr(of, first), rest, value) if rest else value})
