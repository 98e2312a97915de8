"""How good a model is, and what that costs: log-perplexity, multiple choice, memory and speed, pruned or not."""

from selattn.evaluation.batches import Batch, make_batches
from selattn.evaluation.losses import log_perplexity
from selattn.utils.distributed import Team

__all__ = ["Batch", "Team", "log_perplexity", "make_batches"]
