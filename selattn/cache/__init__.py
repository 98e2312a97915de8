"""What outlives a step: keys, values, and what was selected of them."""

from selattn.cache.growing import SelectiveCache, SelectiveLayer

__all__ = ["SelectiveCache", "SelectiveLayer"]
