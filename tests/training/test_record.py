"""Loss, kept fractions and speed of a training are shown; without a terminal there are lines."""

import io

import pytest
from rich.console import Console

from selattn.training.record import Score, shares, shown, tell
from selattn.utils.progress import Shown

TRAINING = {"step": 20, "loss": 3.21, "kept": [0.125, 0.5], "wall": {"tokens_per_second": 12345.6}}
SCORES = {"validation": {"loss": 2.5, "accuracy": 0.995}, "out_of_distribution": {"loss": 1.0, "accuracy": 1}}


def told(terminal, width):
    """What is written of 20 steps, a line of the log and an evaluation."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, color_system=None, legacy_windows=False)
    progress = Shown(console, keep=True)
    progress.begin(100, "step", 10, heading="a run", every=0.0)
    progress.advance(10)
    tell(progress, TRAINING)
    tell(progress, {"step": 20, "evaluation": SCORES})
    progress.end()
    progress.end()
    return out.getvalue()


def test_lines():
    assert told(False, 100).splitlines() == [
        "step 20/100  loss 3.210  kept 0.12 0.50  12,346 tokens/s",
        "step 20  validation: loss 2.5000, 99.5% right  out of distribution: loss 1.0000, 100.0% right",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_has_loss_kept_fractions_and_speed(width):
    text = told(True, width)
    assert text.startswith("a run\n")
    assert "validation: loss 2.5000, 99.5% right" in text
    last = text[text.rindex("20/100") :]
    assert "loss 3.210  kept 0.12 0.50  12,346 tokens/s" in last.splitlines()[0]


def test_many_layers_are_columns():
    assert shares([0.0, 0.5, None, 0.99, 1.0]) == "▁▅ ██ 0.62"
    assert shares([None, 0.25]) == "- 0.25"


def test_text_has_no_accuracy():
    assert shown({"validation": Score(3.0)}) == "validation: loss 3.0000"
