"""Two devices that convert a model learn what one learns: the same steps, losses and teacher."""

import pytest
import torch

from tests import forked
from tests.conversion.tiny import CONTEXT, SHORT, text_of
from tests.training.tiny import log, weights


def test_two_processes_are_one(world, tmp_path):
    text = ["--data", text_of(world).source, "--validation", "0.5", "--context", str(CONTEXT)]
    words = ["-m", "selattn", "convert", world / "llama", *text, "--out", tmp_path / "two", *SHORT]
    done = forked.run(words, tmp_path, count=2, SELATTN_CACHE=str(world / "cache"))
    assert done.returncodes == [0, 0], done.stderr
    assert done.stdout.count("untrained, at full strength") == 1  # one of them shows the table
    ours, theirs = weights(tmp_path / "two"), weights(world / "whole")
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=2e-4)
    for one, two in zip(log(world / "whole"), log(tmp_path / "two"), strict=True):
        for what in ("lm_loss", "kl_loss", "memory_loss", "loss"):
            if "loss" in one:
                assert one[what] == pytest.approx(two[what], rel=1e-3, abs=1e-5)
