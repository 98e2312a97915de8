"""A Trainer with the plainest optimizer, so that weights show gradients, and nothing that writes or prints."""

import torch
from transformers import Trainer, TrainingArguments

from tests.models.tiny import token_ids

# Newer versions of transformers have another name for it.
CHECKPOINTING = (
    "activation_checkpointing"
    if "activation_checkpointing" in TrainingArguments.__dataclass_fields__
    else "gradient_checkpointing"
)


def enable_checkpointing(model, kwargs=None, **more):
    getattr(model, f"{CHECKPOINTING}_enable")(kwargs, **more)


class Rows(torch.utils.data.Dataset):
    """Rows of equal length, each its own labels."""

    def __init__(self, count, length=10, seed=0):
        self.ids = token_ids(count, length, seed=seed)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def trainer(model, folder, rows=None, **changes):
    arguments = {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "use_cpu": True,
        "seed": 0,
        "dataloader_pin_memory": False,
    }
    return Trainer(model, TrainingArguments(**{**arguments, **changes}), train_dataset=rows or Rows(4))
