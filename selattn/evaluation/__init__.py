"""How good a model is, and what that costs: log-perplexity, multiple choice, memory and speed, pruned or not."""

from selattn.evaluation.compare import evaluate
from selattn.evaluation.losses import Batch, log_perplexity, make_batches
from selattn.evaluation.subjects import Subject
from selattn.evaluation.tradeoff import Curve, measure_tradeoff
from selattn.utils.distributed import Team

__all__ = ["Batch", "Curve", "Subject", "Team", "evaluate", "log_perplexity", "make_batches", "measure_tradeoff"]
