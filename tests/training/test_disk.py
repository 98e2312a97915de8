"""A disk that is full: one line, and nothing half written."""

import errno
import os
import re
from pathlib import Path

import pytest
import torch

from selattn.errors import SelattnError
from selattn.training import folder, train
from tests.training.killed import FORK, limited
from tests.training.tiny import same_run, tiny


def test_a_full_disk_is_one_line_and_the_run_can_go_on(tmp_path, monkeypatch):
    """Full at the second checkpoint; with space again, the run ends as if nothing had been."""
    save, calls = torch.save, []

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) == 6:
            Path(args[1]).write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[1]))
        save(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(SelattnError, match="No space left on device; the checkpoint of step 4 is whole") as error:
            train(tiny(), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert list(folder.checkpoints(tmp_path / "run")) == [4]
    train(tiny(), tmp_path / "run", resume=True)
    train(tiny(), tmp_path / "whole")
    same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("limit", [500, 2_000, 10_000, 30_000])
def test_a_file_that_the_system_refuses_to_write(tmp_path, limit):
    """The system itself says no: to the configuration, the log, the weights (safetensors) or the optimizer (torch)."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=limited, args=(tmp_path / "run", limit, theirs))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert ours.poll()
    message = ours.recv()
    assert re.match(rf"cannot write (to )?{tmp_path / 'run'}(/run\.json)?: ", message)
    assert "File too large" in message or "the disk is full" in message
    assert "\n" not in message
    assert list(folder.checkpoints(tmp_path / "run")) == []
    assert not (tmp_path / "run" / "model").exists()
