"""From a configuration to a trained model in a folder, in one go or in many."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from transformers import TrainingArguments, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback

from selattn.errors import FULL, CannotWriteError, SelattnError, require
from selattn.training import folder as run_folder
from selattn.training.config import RunConfig, Schedule
from selattn.training.datasets import Data
from selattn.training.model import Made, Maker
from selattn.training.presets import named_run
from selattn.training.record import Score, TrainingLosses, TrainingRecord
from selattn.training.trainer import SelectiveTrainer
from selattn.utils.distributed import Team, world_size
from selattn.utils.files import make_folder, writing
from selattn.utils.memory import keep_freed_memory
from selattn.utils.progress import Progress
from selattn.utils.records import command_line, write_record
from selattn.utils.typed import from_json

_T = TypeVar("_T")
_DECAY = {
    "cosine": "cosine_with_min_lr",
    "linear": "linear",
    "constant": "constant_with_warmup",
    "inverse_sqrt": "inverse_sqrt",
}
_FULL_WORDS = ("No space left", "File too large", "PytorchStreamWriter failed", "iostream error", "unexpected pos")


@dataclass(frozen=True)
class Finished:
    """How a call of `train` ended.

    Attributes:
        folder: of the run.
        step: the last one taken.
        record: the training record; None if it was interrupted, and can be resumed.
    """

    folder: Path
    step: int
    record: TrainingRecord | None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.record is None

    @property
    def evaluation(self) -> dict[str, Score]:
        """The last evaluation, by the name of the set; empty if interrupted."""
        return {} if self.record is None else self.record.evaluation


def train(
    run: RunConfig | str,
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    data: Data | None = None,
    progress: Progress | None = None,
    maker: Maker | None = None,
) -> Finished:
    """Carry out a run in `folder`.

    Args:
        run: the whole configuration, or a name that `selattn train --list` lists.
        folder: where everything goes; see `selattn.training.folder`.
        resume: continue from the newest whole checkpoint.
        overwrite: delete what is in the folder and start over.
        data: the rows, if they are not to be prepared from the run's settings.
        progress: is told how it proceeds; None shows nothing.
        maker: makes data, model and trainer; None is the run's own.
    """
    require("accelerate", "tensorboard")
    run = named_run(run) if isinstance(run, str) else run
    maker = maker or run.maker()
    folder = Path(folder)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args = training_arguments(run, folder)
    progress = progress if progress is not None and args.process_index == 0 else Progress()
    whole = run.to_dict()
    defaults = type(run)(run.name, run.data).to_dict()
    with contextlib.closing(run_folder.lock_of(folder)) as lock:
        _by_one(folder, lambda: run_folder.take(folder, lock))
        plan = _by_one(folder, lambda: run_folder.check(folder, whole, defaults, resume, overwrite))
        if plan.resumes and run_folder.finished(folder):
            return _ended(folder)
        maker.check(run)
        check_schedule(run.schedule)  # after what a warm-up that is too long for a first try would hide
        data = data or maker.prepare(run, progress.shows)
        set_seed(run.seed)
        made = maker.make(run, data.tokenizer)
        _by_one(folder, lambda: run_folder.begin(folder, whole, plan, lock))
        for path, wrong in plan.skipped:
            progress.say(f"{path.name} is skipped: {wrong}")
        if plan.resumes:
            at = f"resuming from step {plan.step:,} of {run.schedule.steps:,}" if plan.step else "starting at step 0"
            progress.say(at if plan.step else f"there is no whole checkpoint yet: {at}")
        return _carry_out(run, made, data, args, progress, plan.step)


def _carry_out(
    run: RunConfig,
    made: Made,
    data: Data,
    args: TrainingArguments,
    progress: Progress,
    start: int | None,
) -> Finished:
    """The steps that are left, in a folder that is ready and locked."""
    folder = Path(str(args.output_dir))
    make_trainer = made.trainer or SelectiveTrainer
    trainer = make_trainer(run, made.model, data, args, progress, made.course, start or 0)
    if trainer.is_fsdp_enabled and args.device.type == "cpu":
        raise SelattnError("accelerate is set to FSDP, and on a CPU the Trainer would silently run DDP: set it to DDP")
    if args.device.type == "cpu":
        keep_freed_memory()
    if args.process_index == 0:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder / "tensorboard"), purge_step=None if start is None else start + 1)
        trainer.add_callback(TensorBoardCallback(writer))
    with _full_disk(folder), _stopping(trainer):
        try:
            if not trainer.stopped:
                at = None if start is None else str(run_folder.checkpoint_path(folder, start))
                trainer.train(resume_from_checkpoint=at)
        finally:
            progress.end()
        step = trainer.state.global_step or start or 0
        if trainer.interrupted and not trainer.stopped and step < run.schedule.steps:
            return Finished(folder, step, None)
        _export(trainer, folder, step)
    return _ended(folder)


def resume_command() -> str:
    """The command line that was given, with --resume."""
    words = [word for word in command_line() if word not in ("--resume", "--overwrite")]
    return shlex.join([*words, "--resume"])


def _by_one(folder: Path, act: Callable[[], _T]) -> _T:
    """Let the leading process act in a run's folder, and give all processes its answer."""

    def one_line() -> _T:
        with writing(folder):
            return act()

    return Team().by_one(one_line)


def _export(trainer: SelectiveTrainer, folder: Path, step: int) -> None:
    """The trained model, whole or not at all, with its record."""
    trainer.finish()
    state = trainer.accelerator.get_state_dict(trainer.model)
    trainer.check_end(state)
    if trainer.args.process_index == 0:
        model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        seconds = trainer.seconds()

        def fill(part: Path) -> None:
            model.save_pretrained(part, state_dict=state)
            trainer.note_changes(part, step)
            trainer.data.save_reader(part)
            write_record(part / run_folder.RECORD, _record(trainer, step, seconds), trainer.run.seed)

        make_folder(folder / run_folder.MODEL, fill)
    trainer.accelerator.wait_for_everyone()


def _record(trainer: SelectiveTrainer, step: int, seconds: float) -> TrainingRecord:
    lines = [line for line in run_folder.read_log(trainer.folder / run_folder.LOG) if "loss" in line]
    model = trainer.accelerator.unwrap_model(trainer.model)
    return TrainingRecord(
        run=trainer.run.to_dict(),
        data_checksums=dict(trainer.data.checksums),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=step,
        tokens=trainer.meter.tokens + int(trainer.meter.sums[2]),
        seconds=round(seconds, 1),
        devices=trainer.args.world_size,
        training=from_json(TrainingLosses, lines[-1]) if lines else {},
        evaluation=trainer.last_evaluation,
    )


def _ended(folder: Path) -> Finished:
    record = run_folder.read_finished(folder)
    return Finished(folder, record.steps, record)


@contextlib.contextmanager
def _stopping(trainer: SelectiveTrainer) -> Iterator[None]:
    """Ctrl-C and a batch system's SIGTERM end the run after the step, with a checkpoint."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, trainer.interrupt)
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    """One line if a file cannot be written, and no half-written checkpoint left behind."""
    try:
        yield
    except Exception as error:
        if not _is_about_writing(error):
            raise
        run_folder.delete_halves(folder)
        step = run_folder.newest(folder)
        kept = "there is no checkpoint yet" if step is None else f"the checkpoint of step {step} is whole"
        reason = "the disk is full"
        if isinstance(error, CannotWriteError):
            reason = error.reason
        elif isinstance(error, OSError) and error.errno is not None:
            reason = os.strerror(error.errno)
        raise SelattnError(
            f"cannot write to {folder}: {reason}; {kept}; free some space and continue with --resume"
        ) from error


def _is_about_writing(error: Exception) -> bool:
    """torch and safetensors wrap the operating system's error in their own, of which only the words tell."""
    if isinstance(error, CannotWriteError):
        return error.full
    if isinstance(error, OSError):
        return error.errno in FULL
    return any(words in str(error) for words in _FULL_WORDS)


def check_schedule(schedule: Schedule) -> None:
    """Raise for a schedule whose parts do not fit each other."""
    if schedule.warmup > schedule.steps:
        raise SelattnError(
            f"schedule.warmup is longer than the run: {schedule.warmup:,} steps of {schedule.steps:,}; "
            "set a shorter schedule.warmup, such as 0, or more schedule.steps"
        )
    if schedule.decay != "cosine" and schedule.final:
        raise SelattnError(f"schedule.final belongs to the cosine; with {schedule.decay} leave it at 0")


def training_arguments(run: RunConfig, folder: Path) -> TrainingArguments:
    """The Trainer's settings for a run. The processes are those that torchrun or accelerate started."""
    devices = world_size()
    cpu = not torch.accelerator.is_available()  # has to be said: else each process would train a model of its own
    micro, accumulate = run.batch.split(devices)
    optimizer, schedule = run.optimizer, run.schedule
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about defaults that are set here
        args = TrainingArguments(
            output_dir=str(folder),
            max_steps=schedule.steps,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=accumulate,
            per_device_eval_batch_size=run.evaluation.batch,
            learning_rate=optimizer.lr,
            lr_scheduler_type=_DECAY[schedule.decay],
            lr_scheduler_kwargs={"min_lr_rate": schedule.final} if schedule.decay == "cosine" else None,
            warmup_steps=schedule.warmup,
            optim="adamw_torch_fused",
            adam_beta1=optimizer.beta1,
            adam_beta2=optimizer.beta2,
            adam_epsilon=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.clip,
            bf16=run.machine.precision == "bf16",
            torch_compile=run.machine.compile,
            **_recomputing(run),
            **_sharding(run),
            use_cpu=cpu,
            ddp_backend="gloo" if cpu and devices > 1 else None,
            seed=run.seed,
            eval_strategy="steps",
            eval_steps=run.evaluation.every,
            save_strategy="steps",
            save_steps=run.checkpoints.every,
            logging_strategy="steps",
            logging_steps=run.log_every,
            logging_nan_inf_filter=False,  # a loss that is not finite is to be seen
            ignore_data_skip=True,  # the sampler itself begins at the right step
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            log_level="error",
            log_level_replica="error",
        )
    if args.world_size != devices:
        raise SelattnError(f"{devices} processes were started, but the Trainer sees {args.world_size}: use torchrun")
    if args.n_gpu > 1:
        raise SelattnError(
            f"this machine has {args.n_gpu} GPUs: start torchrun --nproc-per-node {args.n_gpu} -m selattn train, "
            "or choose one with CUDA_VISIBLE_DEVICES=0"
        )
    if run.machine.shard == "fsdp" and (args.device.type == "cpu" or args.world_size == 1):
        raise SelattnError(
            "machine.shard=fsdp needs several GPUs: on a CPU the Trainer would silently run DDP; "
            "leave it at none, or start with torchrun on GPUs"
        )
    return args


def _recomputing(run: RunConfig) -> dict[str, Any]:
    """Gradient checkpointing, which newer versions of transformers call by another name."""
    fields = TrainingArguments.__dataclass_fields__
    name = "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"
    return {
        name: run.machine.recompute and run.machine.shard == "none",
        f"{name}_kwargs": {"use_reentrant": False} if run.machine.recompute else None,
    }


def _sharding(run: RunConfig) -> dict[str, Any]:
    if run.machine.shard == "none":
        return {}
    config = {
        "version": 2,
        "transformer_layer_cls_to_wrap": [run.layer_class],
        "activation_checkpointing": run.machine.recompute,
    }
    return {"fsdp": True, "fsdp_config": config}
