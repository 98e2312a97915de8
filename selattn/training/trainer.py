"""transformers' Trainer with what selection adds: the data order, the ramp, the log, and exact evaluation.

Only what the Trainer documents as its hooks is overridden. It keeps the loop: accumulation, clipping, autocast,
compilation, DDP and FSDP, and its own files in a checkpoint.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, default_collate
from transformers import (
    Adafactor,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from selattn.errors import DivergedError
from selattn.models.formats import change_config
from selattn.training import folder
from selattn.training.config import RunConfig
from selattn.training.datasets import Data, Rows, Share, StepBatches
from selattn.training.model import Course
from selattn.training.record import LogLine, Losses, Score, tell
from selattn.utils.files import to_disk
from selattn.utils.progress import Progress
from selattn.utils.typed import from_json, to_json

_AGREE_EVERY = 10  # steps after which the devices ask each other whether to stop


class SelectiveTrainer(Trainer):
    """A run's Trainer.

    Args:
        run: the whole configuration.
        model: to be trained.
        data: its rows.
        args: the Trainer's own settings, made from the run.
        progress: is told how it proceeds.
        course: what changes on the way.
        start: the step to begin at, of the checkpoint that `train` is given, if any.
        kl: the share of the KL divergence in the loss, where `add_loss` adds one.
    """

    def __init__(
        self,
        run: RunConfig,
        model: Any,
        data: Data,
        args: TrainingArguments,
        progress: Progress,
        course: Course,
        start: int = 0,
        kl: float | None = None,
    ) -> None:
        self.run, self.data, self.display, self.start = run, data, progress, start
        self.folder = Path(args.output_dir or ".")
        callbacks: list[TrainerCallback] = [_Keeper(self)]
        sets: Any = dict(data.validation)
        adafactor: Any = None  # T5's; AdamW the Trainer makes itself
        if run.optimizer.kind == "adafactor":
            settings = {"lr": run.optimizer.lr, "scale_parameter": True, "relative_step": False, "warmup_init": False}
            adafactor = Adafactor, settings
        super().__init__(
            model=model, args=args, callbacks=callbacks, eval_dataset=sets, optimizer_cls_and_kwargs=adafactor
        )
        model.config.use_cache = True  # the Trainer switches it off, and it would be saved so
        self.remove_callback(PrinterCallback)  # `display` shows more
        self.course = course
        self.meter = Meter(model.description.layers, self.args.device, kl)
        self.logged_step = start
        self.stopped = False  # by having reached the target accuracy
        self.interrupted = False
        self.last_evaluation: dict[str, Score] = {}
        self.seconds_before = 0.0  # of wall clock, in earlier sessions
        self._begun = self._since = time.perf_counter()
        self._tokens_since = 0
        if start:
            self._restore(folder.checkpoint_path(self.folder, start))

    # ---- data ----

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Micro batches of this device from step `start` on. Its generator keeps it away from the run's randomness."""
        share = Share(
            self.args.per_device_train_batch_size,
            self.args.gradient_accumulation_steps,
            self.args.process_index,
            self.args.world_size,
        )
        return self._loader(self.data.train, batch_sampler=StepBatches(share, self.args.max_steps, self.start))

    def _loader(self, rows: Rows, **sampling: Any) -> DataLoader[Any]:
        return DataLoader(
            rows,
            **sampling,
            collate_fn=default_collate,
            num_workers=self.run.batch.workers,
            pin_memory=self.args.device.type == "cuda",
            generator=torch.Generator(),
        )

    # ---- loss ----

    def changed(self) -> dict[str, Any]:
        """Changes of the model's config that are in force in the next step, as arguments of its `forward`."""
        changed: dict[str, Any] = {**self.course.at(self.state.global_step)}
        if "selection_strength" in changed:  # a tensor, so that a compiled model is not compiled for each of its values
            changed["selection_strength"] = torch.tensor(changed["selection_strength"], device=self.args.device)
        return changed

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The model's own loss, memory term included; what it is made of goes to the meter."""
        given = {**inputs, **self.changed(), "use_cache": False}
        loss, outputs = super().compute_loss(model, given, True, num_items_in_batch)
        loss = self.add_loss(loss, outputs, inputs, num_items_in_batch)
        with torch.no_grad():
            self.meter.add(outputs, inputs)
        return (loss, outputs) if return_outputs else loss

    def add_loss(self, loss: Tensor, outputs: Any, inputs: dict[str, Any], items: Tensor | int | None) -> Tensor:
        """The loss with what a subclass adds to the model's own; `items` are the labels of the whole step."""
        return loss

    # ---- log ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """A record of the steps since the last one. The Trainer's other summaries are in our records already."""
        if "loss" not in logs:
            return
        sums = self._sum(self.meter.sums)
        values = self.meter.take(sums, self.state.global_step - self.logged_step)
        self.logged_step = self.state.global_step
        now, tokens = time.perf_counter(), values["tokens"]
        record = {
            "step": self.state.global_step,
            **values,
            **self.course.in_force(self.state.global_step - 1),
            "grad_norm": logs["grad_norm"],
            "learning_rate": logs["learning_rate"],
            "wall": {
                "seconds": round(self.seconds(), 3),
                "tokens_per_second": round((tokens - self._tokens_since) / max(now - self._since, 1e-9), 1),
            },
        }
        self._since, self._tokens_since = now, tokens
        line = cast(LogLine, record)
        self._publish(line, _scalars(line))
        if not math.isfinite(values["loss"]):
            raise DivergedError(values["loss"], self.state.global_step)

    def _publish(self, record: LogLine, scalars: dict[str, float]) -> None:
        """To the log, to TensorBoard, and to the user."""
        if self.is_world_process_zero():
            folder.append_log(self.folder / folder.LOG, record)
            tell(self.display, record)
        super().log(scalars)

    def _sum(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, "sum") if self.args.world_size > 1 else values.clone()

    def seconds(self) -> float:
        """Of wall clock that the run has taken, earlier sessions included."""
        return self.seconds_before + time.perf_counter() - self._begun

    # ---- evaluation ----

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Every validation set: loss for each token, kept fractions, and for a task the share of samples solved."""
        begun = time.perf_counter()
        self.last_evaluation = scores = {name: self._score(rows) for name, rows in self.data.validation.items()}
        seconds = time.perf_counter() - begun
        record = {
            "step": self.state.global_step,
            "evaluation": to_json(scores),
            **self.course.in_force(self.state.global_step),
            "wall": {"seconds": round(seconds, 3)},
        }
        scalars = {
            f"eval_{name}_{what}": value
            for name, score in scores.items()
            for what, value in (("loss", score.loss), ("accuracy", score.accuracy))
            if value is not None
        }
        self._publish(cast(LogLine, record), dict(scalars))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scalars)
        target = self.run.evaluation.target
        if target is not None and (scores["validation"].accuracy or 0.0) >= target:
            self.stopped = self.control.should_training_stop = self.control.should_save = True
        self._since += time.perf_counter() - begun  # no part of the training's tokens per second
        return scalars

    def _score(self, rows: Rows) -> Score:
        """One set. The devices take rows in turn, and no row counts twice."""
        model: Any = self.model
        layers = self.accelerator.unwrap_model(model, keep_torch_compile=False).description.layers
        was_training = model.training
        model.eval()
        sums = torch.zeros(5 + layers, dtype=torch.float64, device=self.args.device)
        changed = self.changed()
        with torch.no_grad():
            for batch, counts in self._batches(rows):
                inputs = {name: tensor.to(self.args.device) for name, tensor in batch.items()}
                outputs = model(**inputs, **changed, num_items_in_batch=1, use_cache=False)
                if counts:
                    sums += self._sums_of(outputs, inputs, layers)
        model.train(was_training)
        loss, labels, tokens, correct, samples, *kept = self._sum(sums).tolist()
        accuracy = None if self.data.task is None else correct / samples
        return Score(loss / labels, accuracy, fractions(kept, tokens))

    def _sums_of(self, outputs: Any, inputs: dict[str, Tensor], layers: int) -> Tensor:
        labels, tokens, task = inputs["labels"], real_tokens(inputs), self.data.task
        correct = torch.zeros((), device=labels.device) if task is None else task.correct(outputs.logits, labels).sum()
        samples = torch.tensor(len(labels), device=labels.device)
        kept = kept_of(outputs, layers, labels.device) * tokens
        parts = [outputs.lm_loss, (predicted(inputs) != -100).sum(), tokens, correct, samples]
        return torch.cat([torch.stack([part.double() for part in parts]), kept.double()])

    def _batches(self, rows: Rows) -> Iterator[tuple[dict[str, Tensor], bool]]:
        """This device's batches, and whether they count: all devices run as many, as sharded models must."""
        size, devices = self.run.evaluation.batch, self.args.world_size
        total = min(len(rows), self.run.evaluation.rows)  # type: ignore[arg-type]
        mine = range(self.args.process_index, total, devices)
        most = math.ceil(math.ceil(total / devices) / size)
        if len(mine):
            for batch in self._loader(Subset(rows, mine), batch_size=size):
                yield batch, True
        for _ in range(most - math.ceil(len(mine) / size)):
            yield default_collate([rows[0]]), False

    # ---- checkpoints ----

    def progress(self) -> dict[str, Any]:
        """The state that the Trainer's own files lack; all devices have to ask."""
        sums = self._sum(self.meter.sums)
        return {
            "meter": self.meter.state(sums),
            "logged_step": self.logged_step,
            "stopped": self.stopped,
            "seconds": self.seconds(),
            "evaluation": to_json(self.last_evaluation),
        }

    def _restore(self, checkpoint: Path) -> None:
        progress = json.loads((checkpoint / folder.PROGRESS).read_text())
        self.meter.restore(progress["meter"], first=self.args.process_index == 0)
        self.logged_step, self.stopped = progress["logged_step"], progress["stopped"]
        self.seconds_before = progress["seconds"]
        self.last_evaluation = from_json(dict[str, Score], progress["evaluation"])
        self._tokens_since = self.meter.tokens

    def note_changes(self, saved: Path, step: int) -> None:
        """Write what is in force at a step into the config of a saved model."""
        if changed := self.course.at(step):
            change_config(saved, changed)

    def check_end(self, state: Mapping[str, Any]) -> None:
        """Raise if the run has diverged after its last log; `state` are the weights, in the process that has them."""
        since = self._sum(self.meter.sums).tolist()
        whole = all(bool(each.isfinite().all()) for each in state.values() if isinstance(each, Tensor))
        broken = self._sum(torch.tensor(float(not whole), device=self.args.device))
        losses = [*since[:2], *(score.loss for score in self.last_evaluation.values())]
        for loss in [*losses, math.nan if broken else 0.0]:
            if not math.isfinite(loss):
                raise DivergedError(loss, self.state.global_step or self.start)

    def finish(self) -> None:
        """Called before the trained model is saved; a subclass may take something off it."""

    def interrupt(self, *_: Any) -> None:
        """Ctrl-C: stop after this step, with a checkpoint. A second one stops at once.

        Nothing is printed here: the signal may have come in the middle of a print, which cannot begin another.
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.interrupted = True


class _Keeper(TrainerCallback):
    """Completes checkpoints and seals them, stops when asked to, and moves the bar."""

    def __init__(self, trainer: SelectiveTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = self.trainer
        trainer.display.begin(state.max_steps, "step", state.global_step, heading=trainer.run.name, every=0.0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self.trainer
        state.epoch = state.global_step / state.max_steps  # the Trainer counts from where it was resumed
        trainer.display.advance()
        if self._shall_stop(state.global_step):
            trainer.display.say("stopping, with a checkpoint")
            control.should_save = control.should_training_stop = True

    def _shall_stop(self, step: int) -> bool:
        """Whether Ctrl-C was pressed; many devices have to agree on the step, and ask each other now and then."""
        trainer = self.trainer
        if trainer.args.world_size == 1:
            return trainer.interrupted
        if step % _AGREE_EVERY:
            return False
        asked = torch.tensor(float(trainer.interrupted), device=trainer.args.device)
        trainer.interrupted = bool(trainer._sum(asked) > 0)
        return trainer.interrupted

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer, checkpoint = self.trainer, folder.checkpoint_path(self.trainer.folder, state.global_step)
        progress = trainer.progress()
        if state.is_world_process_zero:
            (checkpoint / folder.PROGRESS).write_text(json.dumps(progress))
            trainer.note_changes(checkpoint, state.global_step)
            trainer.data.save_reader(checkpoint)  # so that a checkpoint can be used as a model
        trainer.accelerator.wait_for_everyone()  # every device has written its own state
        if state.is_world_process_zero:
            if (log := trainer.folder / folder.LOG).exists():
                to_disk(log)  # what was logged before a checkpoint is not logged again after it
            folder.seal(checkpoint)
            folder.delete_old(trainer.folder, trainer.run.checkpoints.keep)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.display.end()


def _scalars(record: LogLine) -> dict[str, float]:
    """The numbers of a record of the training, each under a name of its own: layers, too."""
    scalars: dict[str, float] = {}
    for name, value in {**record, **record["wall"]}.items():
        if isinstance(value, list):
            scalars |= {f"{name}/layer_{layer}": part for layer, part in enumerate(value) if part is not None}
        elif isinstance(value, int | float) and name not in ("step", "seconds"):
            scalars[name] = value
    return scalars


class Meter:
    """Loss, memory term, tokens and kept fractions of the training steps.

    Losses arrive as shares of a step (the Trainer divides by the labels of all micro batches and devices), so their sum
    over micro batches and devices is the step's loss. Kept fractions are weighted by tokens.

    Args:
        layers: of the model.
        device: where the sums are.
        kl: the share of the KL divergence (`outputs["kl_loss"]`) in the loss; None without a teacher.
    """

    def __init__(self, layers: int, device: torch.device, kl: float | None = None) -> None:
        # lm loss, memory term, tokens, for each layer the kept tokens, and KL if there is any; fp64, so that sums are
        # exact enough to be the same in any grouping that is printed.
        self._layers, self._kl = layers, kl
        self.sums = torch.zeros(3 + layers + (kl is not None), dtype=torch.float64, device=device)
        self.tokens = 0  # before those in `sums`

    def add(self, outputs: Any, inputs: dict[str, Tensor]) -> None:
        """One micro batch of this device."""
        zero = self.sums.new_zeros(())
        tokens = real_tokens(inputs)
        kept = kept_of(outputs, self._layers, self.sums.device)
        memory = outputs.get("memory_loss")
        parts = [outputs["lm_loss"], zero if memory is None else memory, tokens]
        more = [] if self._kl is None else [outputs["kl_loss"].double()[None]]
        self.sums += torch.cat([torch.stack([part.double() for part in parts]), kept.double() * tokens, *more])

    def take(self, sums: Tensor, steps: int) -> Losses:
        """The record's values over the last `steps` steps; the sums are reset."""
        lm_loss, memory_loss, tokens, *rest = sums.tolist()
        self.tokens += int(tokens)
        self.sums.zero_()
        losses: Losses = {
            "loss": (lm_loss + memory_loss) / steps,
            "lm_loss": lm_loss / steps,
            "memory_loss": memory_loss / steps,
            "kept": fractions(rest[: self._layers], tokens),
            "tokens": self.tokens,
        }
        if self._kl is not None:
            losses["kl_loss"] = rest[-1] / steps
            losses["loss"] += self._kl * (rest[-1] - lm_loss) / steps
        return losses

    def state(self, sums: Tensor) -> dict[str, Any]:
        """For a checkpoint: JSON numbers are exact."""
        return {"sums": ["nan" if x != x else x for x in sums.tolist()], "tokens": self.tokens}

    def restore(self, state: dict[str, Any], first: bool) -> None:
        """Resume from a checkpoint. The sums were over all devices, so the first one takes them."""
        self.tokens = state["tokens"]
        if first:
            self.sums.copy_(torch.tensor([float(x) for x in state["sums"]], dtype=torch.float64))


def real_tokens(inputs: dict[str, Tensor]) -> Tensor:
    """Tokens of a batch that are not padding; with an encoder those of the decoder."""
    if "decoder_attention_mask" in inputs:
        return inputs["decoder_attention_mask"].sum()
    if "attention_mask" in inputs:
        return inputs["attention_mask"].sum()
    return torch.tensor(inputs["input_ids"].numel(), device=inputs["input_ids"].device)


def predicted(inputs: dict[str, Tensor]) -> Tensor:
    """The labels that tokens have a loss for: a decoder alone predicts no first token, one with an encoder does."""
    labels = inputs["labels"]
    return labels if "decoder_attention_mask" in inputs else labels[:, 1:]


def kept_of(outputs: Any, layers: int, device: torch.device) -> Tensor:
    """[layers], the fraction that each keeps; NaN if none selects."""
    kept: Tensor | None = outputs.get("kept")
    return torch.full((layers,), torch.nan, device=device) if kept is None else kept


def fractions(kept: list[float], tokens: float) -> list[float | None] | None:
    """Kept fractions of the layers, None for those that do not select, and None if none does."""
    shares = [None if x != x else x / tokens for x in kept]
    return shares if any(share is not None for share in shares) else None
