"""Who leaves when a layer is full: policies, budgets, and the order in which tokens are evicted."""

from selattn.eviction.budgets import Budgets
from selattn.eviction.order import eviction_order, evictions, in_force, kept_positions
from selattn.eviction.policies import (
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
from selattn.ops.order import NEVER, Kept

__all__ = [
    "H2O",
    "NEVER",
    "POLICIES",
    "Budgets",
    "KeepAll",
    "Kept",
    "Policy",
    "Selective",
    "Threshold",
    "Tova",
    "Window",
    "check_policy",
    "eviction_order",
    "evictions",
    "import_policy",
    "in_force",
    "kept_positions",
    "make_policy",
    "policy_name",
]
