"""Conversion: a pretrained model becomes selective, and learns to forget.

config      a conversion is a run of the trainer, with a section of its own
trainer     the model that learns, the frozen one that it learns from, and the trainer with both
run         all of it in one call: training, control, table and search
"""

from selattn.conversion.config import Conversion, ConversionRun, conversion_run
from selattn.conversion.run import ConversionRecord, Converted, convert

__all__ = ["Conversion", "ConversionRecord", "ConversionRun", "Converted", "conversion_run", "convert"]
