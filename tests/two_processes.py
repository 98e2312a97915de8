"""`selattn` in two processes of torch.distributed: forked from one that has imported it, so neither waits for torch.

What torchrun tells them stands in their environment; tests/training/test_devices.py starts torchrun itself.
"""

import multiprocessing
import os
import socket
import sys
import tempfile
from pathlib import Path

import torch

import selattn.evaluation
import selattn.pruning  # noqa: F401  so that the process that is forked has it
from selattn.cli.main import main

FORK = multiprocessing.get_context("forkserver")


def _run(rank, port, words, folder, log, environment):
    """One of the two: its output goes to files, and its environment is that of who asks for it."""
    os.environ.clear()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{log}/{name}{rank}", os.O_WRONLY | os.O_CREAT), number)
    os.environ |= environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    os.chdir(folder)
    sys.argv = ["selattn", *words]
    code = main(words)
    sys.stdout.flush()
    sys.exit(code)


def run(words, folder=".", timeout=200):
    """The command in two processes, in a folder; what the two have printed. Fails unless both end well."""
    FORK.set_forkserver_preload(["tests.two_processes"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as log:
        how = (port, [str(word) for word in words], str(Path(folder).resolve()), log, dict(os.environ))
        pair = [FORK.Process(target=_run, args=(rank, *how)) for rank in range(2)]
        for process in pair:
            process.start()
        for process in pair:
            process.join(timeout)
        said = [Path(log, name).read_text() for name in ("out0", "out1", "err0", "err1")]
        for process in pair:
            process.kill()
    assert [process.exitcode for process in pair] == [0, 0], said[2:]
    return "".join(said[:2])
