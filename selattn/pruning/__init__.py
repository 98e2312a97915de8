"""The search for budgets: how many tokens each layer may keep before the loss suffers."""

from selattn.pruning.folder import Step, chosen, read_path, read_search, searched
from selattn.pruning.run import Pruned, SearchRecord, prune
from selattn.pruning.search import Procedure, first_step, search_rows, steps
from selattn.pruning.trials import Trials
from selattn.pruning.until import Until, parse_until

__all__ = [
    "Procedure",
    "Pruned",
    "SearchRecord",
    "Step",
    "Trials",
    "Until",
    "chosen",
    "first_step",
    "parse_until",
    "prune",
    "read_path",
    "read_search",
    "search_rows",
    "searched",
    "steps",
]
