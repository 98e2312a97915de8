"""The KV cache: budgets, the policies that choose which token is evicted, and the slots that hold what is kept."""

from selattn.cache.attention import DRAFT as DRAFT
from selattn.cache.attention import attend as attend
from selattn.cache.attention import defer as defer
from selattn.cache.budgets import Budgets as Budgets
from selattn.cache.cache import SelectiveCache as SelectiveCache
from selattn.cache.layer import SlotLayer as SlotLayer
from selattn.cache.layer import handed_over as handed_over
from selattn.cache.order import eviction_order as eviction_order
from selattn.cache.order import evictions as evictions
from selattn.cache.order import in_force as in_force
from selattn.cache.order import kept_positions as kept_positions
from selattn.cache.policies import H2O as H2O
from selattn.cache.policies import POLICIES as POLICIES
from selattn.cache.policies import KeepAll as KeepAll
from selattn.cache.policies import Policy as Policy
from selattn.cache.policies import Selective as Selective
from selattn.cache.policies import Threshold as Threshold
from selattn.cache.policies import Tova as Tova
from selattn.cache.policies import Window as Window
from selattn.cache.policies import import_policy as import_policy
from selattn.cache.policies import make_policy as make_policy
from selattn.cache.policies import policy_name as policy_name
from selattn.ops.eviction import NEVER as NEVER
from selattn.ops.eviction import Kept as Kept
