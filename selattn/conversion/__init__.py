"""Conversion: a pretrained model becomes selective, and learns to forget.

config      what a conversion is: a run of the trainer, with a section of its own
student     the model that learns, with a new selecting form, and the frozen one that it learns from
distill     the loss that is shared with the teacher, whose logits are never there whole
trainer     the trainer of a run, with the teacher and what is frozen at first
record      the losses that have to be compared
run         all of it in one call: training, control, table and search
"""

from selattn.conversion.config import Conversion, ConversionRun, conversion_run
from selattn.conversion.record import ConversionRecord
from selattn.conversion.run import Converted, convert

__all__ = ["Conversion", "ConversionRecord", "ConversionRun", "Converted", "conversion_run", "convert"]
