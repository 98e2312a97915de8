"""Of a training loss, kept fractions and speed are shown; without a terminal there are lines."""

import io

import pytest
from rich.console import Console

from selattn.training.display import evaluation, shares, tell
from selattn.training.record import Score
from selattn.utils.progress import Shown

TRAINING = {"step": 20, "loss": 3.21, "kept": [0.125, 0.5], "wall": {"tokens_per_second": 12345.6}}
EVALUATION = {
    "step": 20,
    "evaluation": {"validation": {"loss": 2.5, "accuracy": 0.995}, "out_of_distribution": {"loss": 1.0, "accuracy": 1}},
}


def console(terminal, width=100):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None, legacy_windows=False)


def test_lines():
    out = console(False)
    shown = Shown(out)
    shown.begin(100, "step", heading="run", every=0.0)
    for _ in range(20):
        shown.advance()
    tell(shown, TRAINING)
    tell(shown, EVALUATION)
    shown.end()
    assert out.file.getvalue().splitlines() == [
        "step 20/100  loss 3.210  kept 0.12 0.50  12,346 tokens/s",
        "step 20  validation: loss 2.5000, 99.5% right  out of distribution: loss 1.0000, 100.0% right",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_has_loss_kept_fractions_and_speed(width):
    out = console(True, width)
    bar = Shown(out, keep=True)
    bar.begin(100, "step", 10, heading="variable-assignment-small-selective")
    tell(bar, TRAINING)
    bar.advance(10)
    tell(bar, EVALUATION)
    bar.end()
    bar.end()
    shown = out.file.getvalue()
    assert shown.startswith("variable-assignment-small-selective\n")
    assert "validation: loss 2.5000, 99.5% right" in shown
    last = shown.rpartition("20/100")[1] + shown.rpartition("20/100")[2]
    assert "…" not in last  # there is room for all of it
    for part in ("20/100", "loss 3.210", "kept 0.12 0.50", "12,346 tokens/s"):
        assert part in last
    assert max(map(len, shown.splitlines())) < 20 * width


def test_many_layers_are_columns():
    assert shares([0.0, 0.5, None, 0.99, 1.0]) == "▁▅ ██ 0.62"
    assert shares([None, 0.25]) == "- 0.25"


def test_text_has_no_accuracy():
    assert evaluation({"validation": Score(3.0)}) == "validation: loss 3.0000"
