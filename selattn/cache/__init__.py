"""What outlives a step: the tokens that are kept, and what was selected of them."""

from selattn.cache.attend import DRAFT, attend, defer
from selattn.cache.cache import SelectiveCache
from selattn.cache.handover import handed_over
from selattn.cache.slots import SlotLayer

__all__ = ["DRAFT", "SelectiveCache", "SlotLayer", "attend", "defer", "handed_over"]
