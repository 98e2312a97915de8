"""How good a model is, and what that costs: log-perplexity, multiple choice, memory and speed, pruned or not."""

from selattn.evaluation.batches import Batch, make_batches
from selattn.evaluation.compare import evaluate
from selattn.evaluation.losses import log_perplexity
from selattn.evaluation.tradeoff import measure_tradeoff
from selattn.utils.distributed import Team

__all__ = ["Batch", "Team", "evaluate", "log_perplexity", "make_batches", "measure_tradeoff"]
