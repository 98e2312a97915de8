"""The search for budgets: how many tokens each layer may keep before the loss suffers."""

from selattn.prune.path import Step, chosen
from selattn.prune.search import Procedure, first_step, steps
from selattn.prune.trials import Trials
from selattn.prune.until import Until, parse_until

__all__ = ["Procedure", "Step", "Trials", "Until", "chosen", "first_step", "parse_until", "steps"]
