"""What outlives a step: the tokens that are kept, and what was selected of them."""

from selattn.cache.attend import attend, attend_whole, defer
from selattn.cache.cache import SelectiveCache
from selattn.cache.slots import SlotLayer

__all__ = ["SelectiveCache", "SlotLayer", "attend", "attend_whole", "defer"]
