"""The KV cache: budgets, the policies that choose which token is evicted, and the slots that hold what is kept."""

from selattn.cache.attend import DRAFT, attend, defer
from selattn.cache.budgets import Budgets
from selattn.cache.cache import SelectiveCache
from selattn.cache.handover import handed_over
from selattn.cache.order import eviction_order, evictions, in_force, kept_positions
from selattn.cache.policies import (
    H2O,
    POLICIES,
    KeepAll,
    Policy,
    Selective,
    Threshold,
    Tova,
    Window,
    check_policy,
    import_policy,
    make_policy,
    policy_name,
)
from selattn.cache.slots import SlotLayer
from selattn.ops.order import NEVER, Kept

__all__ = [
    "DRAFT",
    "H2O",
    "NEVER",
    "POLICIES",
    "Budgets",
    "KeepAll",
    "Kept",
    "Policy",
    "Selective",
    "SelectiveCache",
    "SlotLayer",
    "Threshold",
    "Tova",
    "Window",
    "attend",
    "check_policy",
    "defer",
    "eviction_order",
    "evictions",
    "handed_over",
    "import_policy",
    "in_force",
    "kept_positions",
    "make_policy",
    "policy_name",
]
