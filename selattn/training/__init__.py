"""Training: a run is a frozen configuration, and `train` carries it out in a folder, in one go or in many.

config      the configuration, checked when it is made; `changed` gives another one
presets     the runs that `selattn train` knows by name, and any other by MODULE:NAME
datasets    from the data settings of a run to rows
model       from a run to its model, and what changes on the way
trainer     transformers' Trainer, with what selection adds
folder      a run's folder: its lock, its log, its checkpoints
record      the log's lines, the record beside the trained model, and the key of a training
launch      from a configuration to a trained model in a folder
"""

from selattn.training.config import RunConfig, changed
from selattn.training.launch import Finished, train
from selattn.training.presets import find_run

__all__ = ["Finished", "RunConfig", "changed", "find_run", "train"]
