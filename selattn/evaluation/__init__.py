"""How good a model is, and what that costs: log-perplexity, multiple choice, memory and speed, pruned or not.

compare     `evaluate`: models side by side, in one record
tradeoff    loss against the size of the cache, in one record
subjects    a model with budgets and a policy, and what its cache holds
text        which rows of a text are read; a search and its report have different ones
losses      log-perplexity
tasks       multiple choice through lm-eval, which asks the model of `scorer`
speed       of the attention backends, and of decoding
traces      F, attention and evictions on one text, for figures and the explorer

The public names are loaded when they are first used: reading a record of a trace needs no model.
"""

from selattn._later import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
