"""The search for budgets: how many tokens each layer may keep before the loss suffers."""

from selattn.pruning.folder import read_path, read_search, searched
from selattn.pruning.run import Pruned, SearchRecord, prune
from selattn.pruning.search import Procedure, Step, Until, chosen, first_step, search_rows, steps
from selattn.pruning.trials import Trials

__all__ = [
    "Procedure",
    "Pruned",
    "SearchRecord",
    "Step",
    "Trials",
    "Until",
    "chosen",
    "first_step",
    "prune",
    "read_path",
    "read_search",
    "search_rows",
    "searched",
    "steps",
]
