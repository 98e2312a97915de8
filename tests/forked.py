"""Programs in processes of their own, forked from one that has imported torch and selattn: none waits for that.

For what needs a process, but not a new interpreter. Several are one run of torch.distributed: what torchrun tells them
stands in their environment (tests/training/test_devices.py starts torchrun itself).
"""

import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

# So that the process that is forked has them.
import selattn.evaluation
import selattn.models.stock
import selattn.pruning
import selattn.training  # noqa: F401

FORK = multiprocessing.get_context("forkserver")


class Done(NamedTuple):
    """How the processes ended, and all that they have printed."""

    returncodes: list[int | None]
    stdout: str
    stderr: str


def _run(words, folder, log, environment):
    """One of them: its output goes to files, and its environment is that of who asks for it."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{log}/{name}{environment.get('RANK', 0)}", os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ |= environment
    torch.set_num_threads(1)
    os.chdir(folder)
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.stdout.flush()


def run(words, folder=".", count=1, timeout=250, **environment):
    """What `python WORDS` does in a folder, in so many processes; `environment` is added to this one's."""
    FORK.set_forkserver_preload(["tests.forked"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    everybody = {**os.environ, **environment}
    if count > 1:
        everybody |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        everybody |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words, folder = [str(word) for word in words], str(Path(folder).resolve())
    with tempfile.TemporaryDirectory() as log:
        processes = []
        for rank in range(count):
            own = everybody | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {})
            processes.append(FORK.Process(target=_run, args=(words, folder, log, own)))
            processes[-1].start()
        for process in processes:
            process.join(timeout)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
        said = {name: "".join(Path(log, f"{name}{i}").read_text() for i in range(count)) for name in ("out", "err")}
    return Done(codes, said["out"], said["err"])
