"""The cache of a whole model: one layer of slots for each of its layers."""

from __future__ import annotations

from collections.abc import Sequence

from transformers.cache_utils import Cache

from selattn.cache.slots import SlotLayer
from selattn.eviction.budgets import Budgets
from selattn.eviction.policies import Policy, make_policy


class SelectiveCache(Cache):
    """Keeps, in layer l, at most K_l tokens, with F: what a selective model needs to go on from a text.

    transformers' own caches hold keys and values only. Under a selective model F would then begin at 0 again with every
    step, and the text would be silently wrong.

    Args:
        layers: how many layers the model has.
        budgets: K_l, one number or one for each layer; None keeps everything.
        policy: who leaves when a layer is full, see `selattn.cache.POLICIES`.
    """

    layers: list[SlotLayer]  # type: ignore[assignment]  # transformers allows layers of any kind

    def __init__(
        self, layers: int, budgets: Budgets | int | Sequence[int] | None = None, policy: str | Policy = "selective"
    ) -> None:
        self.budgets = Budgets.of(budgets)
        self.policy = policy if isinstance(policy, Policy) else make_policy(policy)
        each: Sequence[int | None] = [None] * layers
        if self.budgets is not None and self.policy.evicts:
            each = self.budgets.for_layers(layers)
        super().__init__(layers=[SlotLayer(budget, self.policy) for budget in each])

    def nbytes(self) -> int:
        """Bytes of all that the cache holds, storage that is still empty included."""
        return sum(x.numel() * x.element_size() for layer in self.layers for x in layer.tensors().values())

    def full_nbytes(self) -> int:
        """Bytes of the keys and values of all tokens so far, as a cache that drops nothing would hold them."""
        total = 0
        for layer in self.layers:
            tokens = layer.get_seq_length()
            for x in (layer.keys, layer.values):
                if x is not None:
                    total += x.shape[0] * x.shape[1] * x.shape[3] * x.element_size() * tokens
        return total

    @property
    def is_croppable(self) -> bool:
        """Drafts can be taken back, once `activate_past_recording` was called."""
        return True
