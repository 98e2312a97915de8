"""Every table and figure of the paper, what its words claim, and what it leaves open: a file for each theme.

language    losses of standard and selective models: sizes, contexts, heads, texts, architectures, T5
ablations   losses of other ways to select
training    losses over training, and what is open: budgets in force, the memory loss, fine-tuning
efficiency  the memory that is saved at the standard model's loss, and beside other ways to evict
needle      a rare name that has to be copied from far back
texts       losses and recall on many texts, under every policy
synthetic   Variable Assignment, Copy and Parity*
curriculum  Variable Assignment in sequences that grow
pictures    what is masked and read in samples of these; F of texts, what is kept, what is stable
downstream  questions; exact: what needs no training
conversions a pretrained model made selective, beside its control
"""

from __future__ import annotations

from lab.engine.experiment import Experiment
from lab.experiments import (
    ablations,
    conversions,
    curriculum,
    downstream,
    efficiency,
    exact,
    language,
    needle,
    pictures,
    synthetic,
    texts,
    training,
)
from selattn.errors import SelattnError, advice, shortened

_THEMES = (
    *(language, ablations, training, efficiency, needle),
    *(synthetic, curriculum, pictures, downstream, exact, texts, conversions),
)
_ALL = {each.name: each for theme in _THEMES for each in theme.EXPERIMENTS}
# In lists and on docs/results.md: the paper's figures and tables, then what its text claims, then what it leaves open.
_ORDER = [
    "masking", "pseudocode", "context-size", "model-size", "extra-heads", "efficiency", "efficiency-contexts",
    "comparison", "sparse", "downstream", "bilinear", "self-impact", "bos-constraint", "self-masking",
    "negative-selection", "local", "t5", "parameters", "variable-assignment", "variable-assignment-10x10",
    "variable-assignment-d8", "variable-assignment-lengths", "copy", "parity", "f-of-a-text", "mean-f", "stability",
    "persisted", "selected-words", "attention-patterns", "gpt2", "vocabulary", "wikitext", "lm1b", "qk-norm",
    "learning-rate", "positions", "course", "course-learned", "course-long", "needle", "grouped-query", "masks",
    "epsilon", "memory-late", "fine-tuning", "after-pruning", "each-iteration", "shrinking", "texts", "texts-pair",
    "texts-whole", "texts-learned", "texts-long", "texts-large", "texts-late", "conversions", "conversions-lengths",
    "conversions-causes",
]  # fmt: skip
EXPERIMENTS: dict[str, Experiment] = {name: _ALL.pop(name) for name in _ORDER}
assert not _ALL


def find_experiment(name: str) -> Experiment:
    """The experiment of that name; for a mistyped one the nearest is suggested."""
    if name not in EXPERIMENTS:
        hint = advice(name, EXPERIMENTS, "see 'python -m lab list'")
        raise SelattnError(f"unknown experiment {shortened(name)!r}; {hint}")
    return EXPERIMENTS[name]
