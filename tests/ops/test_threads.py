"""The compiled backend with several threads, with other instruction sets, and with inputs in any layout."""

import os
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from selattn.ops import Sequences
from selattn.utils import native
from tests.ops.cases import attend

B, H, N = 2, 4, 500


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(leaves, backend="cpu", **options):
    got = attend(*leaves, enable_gqa=True, backend=backend, **options, wanted=("memory",))
    return (got.output, got.memory, *torch.autograd.grad(got.output.sin().sum() + got.memory.sin().sum(), leaves))


def leaves(dtype=torch.float32, n=N):
    shapes = ((H, 24), (2, 24), (2, 16))
    return [torch.randn(B, heads, n, size).to(dtype).requires_grad_() for heads, size in shapes]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_again_with_as_many_threads_is_the_same_to_the_last_bit(dtype, threads):
    torch.set_num_threads(threads)
    inputs = leaves(dtype)
    first = run(inputs)
    for _ in range(4):
        assert all(torch.equal(x, y) for x, y in zip(run(inputs), first, strict=True))


@pytest.mark.parametrize("copies", [1, 8])
def test_results_do_not_depend_on_the_threads(copies):
    """Up to rounding: how many blocks of queries go together, and how gradients add up, follows the threads."""
    inputs, found = [x.detach().repeat(copies, 1, 1, 1).requires_grad_() for x in leaves(torch.float64)], []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        found.append(run(inputs))
    for other in found[1:]:
        assert_close(other, found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_a_block_of_nothing_but_padding_lets_nobody_pass(threads):
    """Strips of queries follow each other over the columns; one that sees nothing is done at once."""
    torch.set_num_threads(threads)
    inputs = leaves(torch.float64, 400)
    real = (torch.arange(400) < 96) | (torch.arange(400) >= 300)
    options = {"sequences": Sequences.from_mask(real.expand(B, 400)), "tolerance": 0.0}
    want = run(inputs, "reference", **options)
    for _ in range(10):
        assert_close(run(inputs, **options), want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("target", ["plain", "avx2", "avx1024"])
def test_another_instruction_set_by_name(target):
    """What the machine does not have is said; with what it has the fuzz finds nothing."""
    code = """
import sys
from selattn.utils import native
from tests.ops import fuzz
if native.unavailable():
    sys.exit(native.unavailable())
print(native.target(), fuzz.run_all(0, 25))
"""
    environment = os.environ | {"SELATTN_TARGET": target, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        assert target not in ("plain", native.target())
        assert done.stderr.startswith(f"SELATTN_TARGET={target} is not an instruction set of this machine")
    else:
        assert done.stdout.split()[-2:] == [target, "0"], done.stdout
