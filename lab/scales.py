"""The three sizes at which experiments are run, as plain data, and the language models of each.

smoke   seconds for each model, on Python's own documentation: whether everything runs, and nothing else
laptop  hours on 2 cores, on a text of the user's; the zoo's models are its long runs
paper   the paper's own setting (section 5 and the appendix), for many GPUs under torchrun

`lab.runs` names single runs of the last two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from selattn.errors import SelattnError
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
from selattn.training.presets import KINDS as MODELS
from selattn.training.presets import size

KINDS = tuple(MODELS)  # standard, selective, memory: selective with the memory loss
STANDARD, SELECTIVE, MEMORY = KINDS
PAIR = STANDARD, SELECTIVE
OTHERS = ("wikitext", "lm1b")  # texts of single experiments


@dataclass(frozen=True)
class Scale:
    """A size.

    Attributes:
        name: smoke, laptop or paper.
        seeds: of the trainings, where an experiment wants several.
        d: the size of a language model unless an experiment varies it.
        contexts: of the experiments on context size; the first is that of all others.
        sizes: d of the experiments on model size.
        data: the text and its vocabulary.
        step_tokens: tokens in a step: the batch follows from the context.
        context_batch: rows in a step of the experiments on context size; None where it follows, too.
        steps: of an ordinary run.
        long_steps: of the three models that most is measured on.
        warmup: steps of it.
        lr: the peak of the learning rate.
        every: steps between evaluations.
        eval_rows, eval_batch: rows of the validation set, and how many of them are read at once.
        save_every: steps between checkpoints.
        log_every: steps between lines of the log; a short run has at least four.
        positions: of an ordinary run.
        tried: the positions that tables of losses try.
        tied: whether the output projection is the embedding.
        machine: how it is computed.
        search_rows, report_rows: documents that budgets are searched on, and reported on.
        search_step: C of the search.
        windows: of local attention.
        needles: how many names are hidden.
        mean_rows: texts that F is averaged over.
        questions: of each downstream task; None for all.
        about: what text it reads, in a sentence.
        texts: what is read for other texts, by their name on the hub.
    """

    name: str
    seeds: tuple[int, ...]
    d: int
    contexts: tuple[int, ...]
    sizes: tuple[int, ...]
    data: TextData
    step_tokens: int
    context_batch: int | None
    steps: int
    long_steps: int
    warmup: int
    lr: float
    every: int
    eval_rows: int
    eval_batch: int
    save_every: int
    log_every: int
    positions: str
    tried: tuple[str, ...]
    tied: bool
    machine: Machine
    search_rows: int
    report_rows: int
    search_step: int
    windows: tuple[int, ...]
    needles: int
    mean_rows: int
    questions: int | None
    about: str
    texts: Mapping[str, str] = field(default_factory=dict)

    def on(self, name: str) -> Scale:
        """The same with another text: a dataset of the hub, or what the user has named for it."""
        if self.name == "smoke":
            return self
        return replace(self, data=replace(self.data, source=self.texts.get(name, name)))

    @property
    def context(self) -> int:
        """N, unless an experiment varies it."""
        return self.contexts[0]

    def run(
        self,
        kind: str | Mapping[str, Any],
        *,
        d: int | None = None,
        context: int | None = None,
        steps: int | None = None,
        positions: str | None = None,
        batch: int | None = None,
        lr: float | None = None,
        **model: Any,
    ) -> RunConfig:
        """A language model of this size with seed 0.

        Args:
            kind: standard, selective, memory; or settings of the model.
            d: its size.
            context: N.
            steps: of the run.
            positions: learned or rotary; by default what is usual at this scale.
            batch: rows in a step.
            lr: the peak of the learning rate.
            **model: more settings of the model.
        """
        chosen = MODELS[kind] if isinstance(kind, str) else dict(kind)
        length, long = context or self.context, steps or self.steps
        settings = {**size(d or self.d), **chosen, "positions": positions or self.positions, **model}
        if self.tied:
            settings.setdefault("tie_word_embeddings", True)
        return RunConfig(
            name=f"{self.name}-{kind if isinstance(kind, str) else 'variant'}",
            data=replace(self.data, context=length),
            model=settings,
            optimizer=Optimizer(lr=lr or self.lr),
            schedule=Schedule(steps=long, warmup=min(self.warmup, long)),
            batch=Batching(size=batch or max(1, self.step_tokens // length)),
            evaluation=Evaluation(every=self.every, rows=self.eval_rows, batch=self.eval_batch),
            checkpoints=Checkpoints(every=self.save_every),
            machine=self.machine,
            log_every=max(1, min(self.log_every, long // 4)),
        )


SMOKE = Scale(
    name="smoke",
    seeds=(0,),
    d=2,
    contexts=(64, 32),
    sizes=(2, 1),
    data=TextData(source="embedded", vocabulary=512, layout="packed", validation=0.1, limit=400),
    step_tokens=512,
    context_batch=None,
    steps=12,
    long_steps=12,
    warmup=2,
    lr=3e-3,
    every=6,
    eval_rows=8,
    eval_batch=8,
    save_every=6,
    log_every=10,
    positions="rotary",
    tried=("rotary",),
    tied=True,
    machine=Machine(),
    search_rows=4,
    report_rows=8,
    search_step=8,
    windows=(8, 16),
    needles=8,
    mean_rows=4,
    questions=2,
    about="Python's own documentation (embedded), 400 documents of it, and questions that are made up: a smoke test",
)
LAPTOP = Scale(
    name="laptop",
    seeds=(0, 1, 2),
    d=3,
    contexts=(512, 256, 1024),
    sizes=(3, 2, 4),
    data=TextData(source="enwik8-clean", vocabulary=3072, layout="packed"),
    step_tokens=2_048,
    context_batch=None,
    steps=1_500,
    long_steps=7_320,
    warmup=100,
    lr=3e-3,
    every=488,
    eval_rows=128,
    eval_batch=8,
    save_every=100,
    log_every=10,
    positions="rotary",
    tried=("rotary", "learned"),
    tied=True,
    machine=Machine(),
    search_rows=16,
    report_rows=64,
    search_step=8,
    windows=(32, 128),
    needles=128,
    mean_rows=32,
    questions=200,
    about="a text of the user's",
)
PAPER = Scale(
    name="paper",
    seeds=(0, 1, 2),
    d=12,
    contexts=(512, 1024, 2048),
    sizes=tuple(range(8, 29, 2)),
    data=TextData(source="c4", vocabulary=8000, layout="documents"),
    step_tokens=256 * 512,
    context_batch=128,
    steps=524_288,
    long_steps=524_288,
    warmup=1_000,
    lr=0.005,
    every=8_192,
    eval_rows=8_192,
    eval_batch=32,
    save_every=1_000,
    log_every=100,
    positions="learned",
    tried=("learned",),
    tied=False,
    machine=Machine(precision="bf16", compile=True),
    search_rows=256,
    report_rows=1_024,
    search_step=8,
    windows=(32, 64, 128, 256, 384, 448, 480),
    needles=512,
    mean_rows=1_000,
    questions=None,
    about="C4 from the hub, as in the paper",
)
_ALL = {scale.name: scale for scale in (SMOKE, LAPTOP, PAPER)}


def scale_of(name: str, settings: Mapping[str, Any]) -> Scale:
    """The scale at which a record was made, from its settings."""
    positions = settings.get("positions") if name == "laptop" else None
    return find_scale(name, positions=positions)


def find_scale(
    name: str,
    source: str | None = None,
    texts: Mapping[str, str] | None = None,
    positions: Sequence[str] | None = None,
) -> Scale:
    """The scale of that name.

    Args:
        name: smoke, laptop or paper.
        source: the text of most experiments; None for that of the scale.
        texts: files for wikitext and lm1b, where these are not to come from the hub.
        positions: that tables of losses try; None for those of the scale.
    """
    if name not in _ALL:
        raise SelattnError(f"unknown scale {name!r}: choose {', '.join(_ALL)}")
    scale = _ALL[name]
    for other in texts or ():
        if other not in OTHERS:
            raise SelattnError(f"no experiment reads a text {other!r}: choose {' or '.join(OTHERS)}")
        if name == "smoke":
            raise SelattnError("--text would change nothing: the smoke scale reads Python's own documentation")
    scale = replace(scale, texts=dict(texts or {}))
    if positions is not None:
        if unknown := [each for each in positions if each not in LAPTOP.tried]:
            raise SelattnError(f"unknown positions {unknown[0]!r}: choose {' or '.join(LAPTOP.tried)}")
        if tuple(positions) != scale.tried and name != "laptop":
            raise SelattnError(f"--positions is for the laptop scale: at the {name} scale they are {scale.positions}")
        scale = replace(scale, tried=tuple(each for each in LAPTOP.tried if each in positions))
    if source is None:
        return scale
    if name == "smoke":
        raise SelattnError("--source would change nothing: the smoke scale reads Python's own documentation")
    return replace(scale, data=replace(scale.data, source=source), about=f"{source}")
