"""The self-check passes with the kernels as they are, and catches those that are made wrong on purpose.

So does `benchmarks/gpu_check.py`, which has many more examples.
"""

import warnings
from unittest import mock

import gpu_check
import pytest
import torch

from selattn.ops.backends import dispatch, triton
from selattn.ops.backends.triton import Triton, configs, selfcheck
from selattn.utils import records
from tests.ops.triton.interpreted.faults import changed

PLACE = selfcheck.place_of(torch.device("cpu"), torch.float32, 64)
# File, what stands there, what is put in its place. The first five in every run.
FAULTS = {
    "F is no running sum": ("common.py", "begin[None, :] + tl.cumsum(S, 0)", "begin[None, :] + S"),
    "a tile's maximum is forgotten": ("attend.py", "total = total * factor + ", "total = total + "),
    "dS stays in its block": ("d_selecting.py", "carry += tl.sum(found, 1)", "carry += tl.sum(found, 1) * 0.0"),
    "another token leaves": ("step.py", "wins = (most > highest)", "wins = (most < highest)"),
    "the budget is one larger": ("order.py", "tl.int32), 0) >= c.budget", "tl.int32), 0) > c.budget"),
    "rows do not see themselves": ("common.py", "r, cols, (cols <= i) & (i", "r, cols, (cols < i) & (i"),
    "columns die too early": ("select.py", "(f >= most + c.least + slack)", "(f >= 0.2)"),
    "delta is left out": ("d_keys.py", "weights * (products - mean[None, :])", "weights * products"),
    "F is not moved on": ("step.py", "tl.store(to, f + S, mask=inside)", "tl.store(to, f, mask=inside)"),
    "the soft cap has no slope": (
        "d_keys.py",
        "d_key = tl.dot(d.to",
        "d = d / slope(capped, c.cap)\n d_key = tl.dot(d.to",
    ),
}
QUICK = list(FAULTS)[:5]


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    selfcheck._in_process.clear()
    selfcheck.warn_once.cache_clear()
    yield
    selfcheck._in_process.clear()


def caught(name, tmp_path):
    with changed(tmp_path / "kernels", *FAULTS[name]), pytest.warns(RuntimeWarning, match="'auto' takes the slower"):
        return selfcheck.failure(PLACE, Triton())


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_caught(name, tmp_path):
    assert caught(name, tmp_path)
    state = selfcheck.known(PLACE)
    assert not state.passed
    assert state.wrong == selfcheck.failure(PLACE, Triton())  # with no second warning


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in QUICK])
def test_other_faults_are_caught(name, tmp_path):
    assert caught(name, tmp_path)


def test_it_passes_and_is_remembered(tmp_path):
    assert selfcheck.known(PLACE) is None
    assert selfcheck.failure(PLACE, Triton()) is None
    assert selfcheck.known(PLACE).passed
    for other in (PLACE._replace(dtype=torch.float16), selfcheck.place_of(PLACE.device, PLACE.dtype, 65)):
        assert selfcheck.known(other) is None
    selfcheck._in_process.clear()  # as another process
    with mock.patch.object(selfcheck, "attempt", side_effect=AssertionError("it was checked again")):
        assert selfcheck.failure(PLACE, Triton()) is None
    selfcheck._in_process.clear()
    with mock.patch.object(selfcheck, "_driver", return_value="a new one"):
        assert selfcheck.known(PLACE).passed  # which the interpreter does not have
    with mock.patch.object(selfcheck, "kernels", return_value="others"):
        assert selfcheck.known(PLACE) is None


def test_a_kernel_that_raises_is_caught(tmp_path):
    class Broken(Triton):
        def attend(self, request):
            raise RuntimeError("no kernel image is available\nand more")

    with pytest.warns(RuntimeWarning, match="RuntimeError: no kernel image is available; please run"):
        assert "no kernel image" in selfcheck.failure(PLACE, Broken())


def test_a_failure_is_tried_again_in_another_process(tmp_path):
    selfcheck.remember(PLACE, "default: output is off")
    with mock.patch.object(selfcheck, "_check", return_value=None) as check:
        assert selfcheck.failure(PLACE, Triton()) is None
    assert check.called


def test_it_runs_while_a_graph_is_traced(monkeypatch):
    """The caller's modes do not reach it: fake tensors, inference."""
    ran = []

    def attempt(example, size, backend):
        with torch.enable_grad():
            x = torch.ones(2, requires_grad=True)
            ran.append(torch.autograd.grad((2 * x).sum(), x)[0].tolist())
        return []

    monkeypatch.setattr(selfcheck, "attempt", attempt)

    def call(x):
        return x + 1 if triton._passed("cpu", "torch.float32", 64) else x - 1

    with torch.inference_mode():
        assert torch.compile(call, fullgraph=True, backend="eager")(torch.zeros(1)).item() == 1.0
    assert ran == [[2.0, 2.0]] * len(selfcheck.EXAMPLES)


def test_what_auto_takes_on_a_cuda_device(monkeypatch):
    """With tensors that are nowhere; the check itself is told what to find."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from selattn.ops import Selection
    from selattn.ops.request import AuxRequest, Request
    from selattn.ops.rules import Rules

    with FakeTensorMode():
        x = torch.empty(1, 2, 8, 16, device="cuda", dtype=torch.bfloat16)
        request = Request(x, x, x, Rules(Selection()))
    known = {torch.device("cuda", 0): None}
    monkeypatch.setattr(selfcheck, "failure", lambda place, backend: known[place.device])
    assert dispatch.choose(request) == "triton"
    assert dispatch.choose(request._replace(wanted=AuxRequest(f=True))) == "chunked"
    assert dispatch.choose(request._replace(wanted=AuxRequest(weights=True))) == "reference"
    known[torch.device("cuda", 0)] = "output is off"
    assert dispatch.choose(request) == "chunked"
    monkeypatch.setattr(configs, "unavailable", lambda: "triton is not installed")
    with pytest.warns(RuntimeWarning, match="'auto' takes the slower 'chunked' on cuda:0: triton is not installed"):
        assert dispatch.choose(request) == "chunked"
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        assert dispatch.choose(request) == "chunked"


def checked(monkeypatch, tmp_path):
    """The record of two examples, made by the script."""
    cpu = torch.device("cpu")
    some = [
        ("default", selfcheck.Size(5, 8, torch.float16, cpu)),
        ("decoding", selfcheck.Size(5, 8, torch.float16, cpu)),
    ]
    monkeypatch.setattr(gpu_check, "whole", lambda device: [(n, x._replace(dtype=torch.float16)) for n, x in some])
    monkeypatch.setattr("sys.argv", ["gpu_check.py", "--out", str(tmp_path / "check.json")])
    with pytest.raises(SystemExit) as done:
        gpu_check.main()
    return done.value.code, records.read_body(tmp_path / "check.json", gpu_check.Record)


def test_the_script_says_that_all_is_right(capsys, tmp_path, monkeypatch):
    code, found = checked(monkeypatch, tmp_path)
    assert (code, found.failed, found.driver) == (0, 0, "interpreter")
    assert [(x.name, x.dtype, x.wrong) for x in found.examples] == [
        ("default", "float16", ()),
        ("decoding", "float16", ()),
    ]
    assert "2 of 2 examples are right on Triton's interpreter" in capsys.readouterr().out


def test_the_script_tells_what_is_wrong(capsys, tmp_path, monkeypatch):
    right = Triton.attend

    def wrong(self, request):
        found = right(self, request)
        return found._replace(output=found.output * 1.1)

    monkeypatch.setattr(Triton, "attend", wrong)
    code, found = checked(monkeypatch, tmp_path)
    assert (code, found.failed) == (1, 1)
    assert "default (float16, heads of 8, 5 tokens): output is off by" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_that_the_script_has():
    assert [(x.name, x.wrong) for x in gpu_check.check_gpu().examples if x.wrong] == []
