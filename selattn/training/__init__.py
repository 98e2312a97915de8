"""Training: runs, which are functions that return a whole configuration, and what carries them out.

config      what a run is: immutable settings, checked when they are made
overrides   the fields of a run; `optimizer.lr=1e-3` on the command line becomes another configuration
presets     the runs that `selattn train` knows by name, and any other by MODULE:NAME
datasets    from the data settings of a run to rows
trainer     transformers' Trainer, with what selection adds
memory      whether a step of it can fit into the machine at all
maker       how the data and the model of a run come about, and what trains it
checkpoints which of them are whole, and which one a run goes on from
folder      a run's folder: who may train there, and its log
record      the lines of its log, and the record beside the trained model
launch      from a configuration to a trained model in a folder
display     what is shown of a run in the terminal
"""

from selattn.training.config import RunConfig
from selattn.training.launch import Finished, train
from selattn.training.overrides import changed
from selattn.training.presets import find_run

__all__ = ["Finished", "RunConfig", "changed", "find_run", "train"]
