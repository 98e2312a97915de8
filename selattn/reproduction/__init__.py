"""The paper's tables and figures by name, each from trained models to a record, a table and a figure.

frame        what an experiment is, which models it needs, and what its record holds
scales       smoke, laptop and paper: the settings of the runs at each of them
settings     what may be set in every training of an experiment
cost         how long a run takes, about
store        trained models by what they were trained with, shared by all experiments
lab          what an experiment is given to measure with
pruned       searches for budgets, trade-offs and what they are read off for
needle       a rare name that has to be copied from far back
verdicts     whether a number bears a claim out
tables       a record as a table, in Markdown and LaTeX
progress     one view over all runs, with the time left
run          train what is missing, evaluate, write
results      docs/results.md from the records
earlier      what was recorded before there were experiments
again        run a record again, and compare
experiments/ one file for each table or figure
"""

from selattn.reproduction.experiments import EXPERIMENTS, find_experiment
from selattn.reproduction.frame import Experiment, Need, Reproduction
from selattn.reproduction.run import Outcome, reproduce

__all__ = ["EXPERIMENTS", "Experiment", "Need", "Outcome", "Reproduction", "find_experiment", "reproduce"]
