"""What outlives a step: the tokens that are kept, what was selected of them, and who leaves when there is no room."""

from selattn.cache.attend import attend, attend_whole
from selattn.cache.budgets import Budgets
from selattn.cache.cache import SelectiveCache
from selattn.cache.policies import POLICIES, Kept, Policy, make_policy
from selattn.cache.slots import SlotLayer
from selattn.cache.tokens import Rules, Tokens

__all__ = [
    "POLICIES",
    "Budgets",
    "Kept",
    "Policy",
    "Rules",
    "SelectiveCache",
    "SlotLayer",
    "Tokens",
    "attend",
    "attend_whole",
    "make_policy",
]
