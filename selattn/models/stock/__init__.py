"""Decoders of transformers made selective: the same object, with a head that selects and a cache that forgets."""

from selattn.models.form import NewForm
from selattn.models.stock.make import evicting, make_selective, make_standard

__all__ = ["NewForm", "evicting", "make_selective", "make_standard"]
