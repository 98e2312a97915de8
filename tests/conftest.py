"""One thread per worker, the same seeds in every run, and how many random examples hypothesis draws."""

import os
import random
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it: the workers share the cores

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background job of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` draws the same examples as long as the same modules are loaded (hypothesis takes constants from them);
# `make test-all` looks further, and elsewhere each time.
settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=250)
settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def _nobody_asks_pip():
    """lm-eval lists what pip has installed after each task, which takes ten times as long as a task of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.collect_env.get_pip_packages", lambda *_: ("pip", ""))
        yield


@pytest.fixture(autouse=True)
def _same_seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
