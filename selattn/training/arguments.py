"""A run in the Trainer's own words."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from selattn.errors import SelattnError
from selattn.training.config import RunConfig, Schedule
from selattn.utils.distributed import world_size

_DECAY = {
    "cosine": "cosine_with_min_lr",
    "linear": "linear",
    "constant": "constant_with_warmup",
    "inverse_sqrt": "inverse_sqrt",
}


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
    """Whether activations are computed again; newer versions of transformers have another name for it."""
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
