"""Training: runs, which are functions that return a whole configuration, and what carries them out.

config      what a run is: immutable settings, checked when they are made
overrides   `optimizer.lr=1e-3` on the command line becomes another configuration
describe    what each field is, in the words of the class that defines it
runs/       the runs that are shipped, by name
sampling    which rows make up which step: a pure function of seed and step
course      what changes on the way: the selection strength, the budgets
datasets    from the data settings of a run to rows
trainer     transformers' Trainer, with what selection adds
memory      whether a step of it can fit into the machine at all
maker       how the model of a run comes about, and what trains it
checkpoints which of them are whole, and which one a run goes on from
folder      a run's folder: who may train there, and its log
record      the lines of its log, and the record beside the trained model
launch      from a configuration to a trained model in a folder
study       several runs that answer one question, and their record
contest     the two small models of `selattn demo`
make_zoo    the models of the zoo
"""

from selattn.training.config import RunConfig
from selattn.training.launch import Finished, train

__all__ = ["Finished", "RunConfig", "train"]
