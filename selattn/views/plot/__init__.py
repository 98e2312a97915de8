"""The paper's pictures, each from a record, as matplotlib figures: `selattn.plot.masking(trace).savefig("f.pdf")`.

From a trace of one text (`selattn.trace(model, text)`, or the record that `Trace.save` wrote):
    tokens        what one token finds struck through by masking (red) and lit by attention (blue)
    masking       F of each layer
    words         the last row's masking over the words of the text, layer by layer
    attention     attention of each layer, of one model or of several beside each other
    kept          what remains in the cache under budgets, layer by layer
From means over many texts (`selattn.evaluation.traces.mean_f`): masking_mean, stability.
From other records: tradeoff (`selattn eval --curve`), curves and scaling (training records), search (`selattn
prune`).
"""

from selattn.errors import require

require("matplotlib")
from selattn.views.plot.curves import curves, scaling, search, tradeoff  # noqa: E402
from selattn.views.plot.matrices import attention, kept, masking, masking_mean, stability  # noqa: E402
from selattn.views.plot.text import tokens, words  # noqa: E402

__all__ = [
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
