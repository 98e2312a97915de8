"""The interface of a backend: attention, the eviction order and a decoding step, or a reason why not."""

from __future__ import annotations

from torch import Tensor

from selattn.ops.backends import plain_cache
from selattn.ops.eviction import Order, OrderRequest, StepRequest
from selattn.ops.request import Attention, Request


class Backend:
    """One implementation. A subclass needs a name and `attend`; what else it does not override is plain PyTorch.

    Every `..._refusal` says in a few words why the backend cannot do what is asked, to follow "cannot do this: "; None
    if it can.

    Attributes:
        name: how it is asked for, and what messages call it.
        plain: whether its attention consists of PyTorch's own operators, which know every kind of derivative.
    """

    name: str
    plain: bool = True

    def unavailable(self) -> str | None:
        """Why this backend cannot run on this machine; None if it can."""
        return None

    def trusted(self, query: Tensor) -> bool:
        """Whether "auto" may give it such tokens, if it does not refuse them."""
        return self.unavailable() is None

    def refusal(self, request: Request) -> str | None:
        """Why it cannot attend so."""
        return None

    def attend(self, request: Request) -> Attention:
        """The output, and what else is wanted. See `Request` and `Attention`."""
        raise NotImplementedError(f"the backend {self.name!r} has no attend(request)")

    def order_refusal(self, request: OrderRequest) -> str | None:
        """Why it cannot compute this eviction order."""
        return None

    def order(self, request: OrderRequest) -> tuple[Order, Tensor | None]:
        """The order after the queries, and the scores after each of them, [n, B, P, M], if they are wanted."""
        return plain_cache.order(request)

    def step_refusal(self, request: StepRequest) -> str | None:
        """Why it cannot make this step."""
        return None

    def step(self, request: StepRequest) -> Tensor:
        """The output [B, H, 1, Dv] of the query; the slots are written to, but for their `length`."""
        return plain_cache.step(request)
