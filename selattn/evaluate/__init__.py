"""How good a model is, and what that costs: log-perplexity, multiple choice, memory and speed, pruned or not."""

from selattn.evaluate.batches import Batch, make_batches
from selattn.evaluate.losses import log_perplexity
from selattn.evaluate.team import Team

__all__ = ["Batch", "Team", "log_perplexity", "make_batches"]
