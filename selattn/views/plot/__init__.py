"""The paper's pictures, each from a record, as matplotlib figures: `selattn.plot.masking(trace).savefig("f.pdf")`.

From a trace of one text (`selattn.trace(model, text)`, or the record that `Trace.save` wrote):
    tokens        what one token sees: masked tokens are struck through in red, read ones lit in blue
    masking       F of each layer
    words         the last row's masking over the words of the text, layer by layer
    attention     attention of each layer, of one model or of several side by side
    kept          the tokens in the cache under budgets, layer by layer
From means over many texts (`selattn.evaluation.traces.mean_f`): masking_mean, stability.
From other records: tradeoff (`selattn eval --curve`), curves and scaling (training records), search (`selattn
prune`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from selattn.errors import require

require("matplotlib")
from selattn.views.plot.curves import curves, scaling, search, tradeoff  # noqa: E402
from selattn.views.plot.matrices import attention, kept, masking, masking_mean, stability  # noqa: E402
from selattn.views.plot.text import tokens, words  # noqa: E402

__all__ = [
    "FIGURES",
    "attention",
    "curves",
    "kept",
    "masking",
    "masking_mean",
    "scaling",
    "search",
    "stability",
    "tokens",
    "tradeoff",
    "words",
]


class Kind(NamedTuple):
    """How a figure is drawn by the command line."""

    draw: Callable[..., Any]  # the figure
    of: str  # "one text": traces; "many texts": means of F; "records"
    options: tuple[str, ...] = ("layers", "title")
    least: int = 1  # models or records
    most: int = 1


FIGURES = {
    "tokens": Kind(tokens, "one text", ("layers", "title", "position")),
    "masking": Kind(masking, "one text"),
    "words": Kind(words, "one text"),
    "attention": Kind(attention, "one text", most=8),
    "kept": Kind(kept, "one text"),
    "masking-mean": Kind(masking_mean, "many texts"),
    "stability": Kind(stability, "many texts", least=2, most=2),
    "tradeoff": Kind(tradeoff, "records", ()),
    "search": Kind(search, "records", ("title",)),
    "curves": Kind(curves, "records", ("title",), most=64),
    "scaling": Kind(scaling, "records", ("title",), most=64),
}
