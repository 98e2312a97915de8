"""Conversion: a pretrained model becomes selective, and learns to forget.

config      what a conversion is: a run of the trainer, with a section of its own
student     the model that learns, with a new selecting form, and the frozen one that it learns from
trainer     the trainer of a run, with the teacher and what is frozen at first
run         all of it in one call: training, control, table and search
"""

from selattn.conversion.config import Conversion, ConversionRun, conversion_run
from selattn.conversion.run import ConversionRecord, Converted, convert

__all__ = ["Conversion", "ConversionRecord", "ConversionRun", "Converted", "conversion_run", "convert"]
