"""The search for budgets: how many tokens each layer may keep before the loss suffers."""

from selattn.evaluation.searches import Step
from selattn.pruning.job import Pruned
from selattn.pruning.path import chosen
from selattn.pruning.record import SearchRecord
from selattn.pruning.rows import search_rows
from selattn.pruning.run import prune
from selattn.pruning.search import Procedure, first_step, steps
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
    "search_rows",
    "steps",
]
