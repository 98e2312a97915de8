"""The search for budgets: how many tokens each layer may keep before the loss suffers."""

from selattn.pruning.path import Step, chosen
from selattn.pruning.search import Procedure, first_step, steps
from selattn.pruning.trials import Trials
from selattn.pruning.until import Until, parse_until

__all__ = ["Procedure", "Step", "Trials", "Until", "chosen", "first_step", "parse_until", "steps"]
