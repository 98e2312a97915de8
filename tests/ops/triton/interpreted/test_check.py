"""`selattn bench --check`: the whole battery, here in the interpreter; what is wrong is told, and recorded."""

import pytest
import torch

from selattn.cli.main import main
from selattn.evaluation import gpu_check
from selattn.ops.backends.triton import Triton, battery
from selattn.utils import records

CPU = torch.device("cpu")


@pytest.fixture
def _few(monkeypatch):
    some = [("default", battery.Size(5, 8, torch.float32, CPU)), ("decoding", battery.Size(5, 8, torch.float16, CPU))]
    monkeypatch.setattr(battery, "whole", lambda device: some)


@pytest.mark.usefixtures("_few")
def test_all_is_right(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--check"]) == 0
    assert "2 of 2 examples are right on Triton's interpreter" in capsys.readouterr().out
    found = records.read_body(tmp_path / "selattn-gpu-check.json", gpu_check.GpuCheck)
    assert [(x.name, x.dtype, x.wrong) for x in found.examples] == [
        ("default", "float32", ()),
        ("decoding", "float16", ()),
    ]
    assert (found.failed, found.driver) == (0, "interpreter")


@pytest.mark.usefixtures("_few")
def test_what_is_wrong_is_told(capsys, tmp_path, monkeypatch):
    right = Triton.attend

    def wrong(self, request):
        found = right(self, request)
        return found._replace(output=found.output * 1.01)

    monkeypatch.setattr(Triton, "attend", wrong)
    assert main(["bench", "--check", "--out", str(tmp_path / "check.json")]) == 1
    shown = capsys.readouterr().out
    assert "default (float32, heads of 8, 5 tokens): output is off by" in shown
    assert "1 of 2 examples are right" in shown
    assert records.read_record(tmp_path / "check.json")["failed"] == 1


def test_the_battery_has_everything():
    for device in (CPU, torch.device("cuda")):
        plan = battery.whole(device)
        assert {name for name, _ in plan} == {*battery.SITUATIONS, "decoding", "eviction order"}
    assert {size.n for _, size in plan} >= {1, 2, 63, 64, 65, 1000}
    assert {(size.dtype, size.size) for _, size in plan} >= {
        (dtype, size) for dtype in (torch.bfloat16, torch.float16, torch.float32) for size in (64, 128)
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_battery():
    assert [(x.name, x.wrong) for x in gpu_check.check_gpu().examples if x.wrong] == []
