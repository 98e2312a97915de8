"""What each process runs under torchrun: the tiny run with the Trainer, then a few steps of a sharded model by hand."""

import json
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard

from selattn.models import SelectiveForCausalLM
from selattn.training import train
from selattn.training.datasets import Share, prepare
from selattn.training.model import model_config
from tests.training.tiny import MODEL, tiny


def run():
    """Without dropout: each device would draw its own."""
    return tiny(model=MODEL)


def losses(rank, devices, steps=4):
    """The losses of the first steps, by a loop of our own; with several devices the model is sharded over them."""
    torch.manual_seed(0)
    model = SelectiveForCausalLM(model_config(run())).train()
    if devices > 1:
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    data, share = prepare(run()).train, Share(8 // devices, 1, rank, devices)
    found = []
    for step in range(steps):
        (samples,) = share.samples(step)
        batch = torch.utils.data.default_collate([data[i] for i in samples])
        # As the Trainer does: divided by all labels, and times the devices, whose mean FSDP takes of the gradients.
        outputs = model(**batch, num_items_in_batch=torch.tensor(8))
        (outputs.loss * devices).backward()
        optimizer.step()
        optimizer.zero_grad()
        parts = torch.stack([outputs.loss.detach(), outputs.lm_loss, outputs.memory_loss])
        if devices > 1:
            dist.all_reduce(parts)
        found.append(parts.tolist())
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    train(run(), folder)
    rank = dist.get_rank()
    assert dist.get_world_size() == 2
    assert dist.get_backend() == "gloo"
    found = losses(rank, 2)
    if rank == 0:
        (folder / "sharded.json").write_text(json.dumps(found))
    dist.destroy_process_group()
