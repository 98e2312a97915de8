"""What processes run that are killed or limited: forked from one that has imported this, so none waits for torch."""

import dataclasses
import multiprocessing
import resource

import torch

from selattn.errors import SelattnError
from selattn.training import train
from tests.training.tiny import tiny

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.training.killed"])


def go(path, steps):
    """The tiny run with so many steps, resumed if there is something to resume."""
    torch.set_num_threads(1)
    run = tiny()
    train(dataclasses.replace(run, schedule=dataclasses.replace(run.schedule, steps=steps)), path, resume=True)


def limited(path, bytes_of_a_file, answer):
    """The tiny run where no file may be longer; the error it ends with is sent back."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_a_file, bytes_of_a_file))
    try:
        train(tiny(), path)
    except SelattnError as error:
        answer.send(str(error))
