"""From the next token's loss to one that is shared with KL(teacher || student), a few tokens at a time.

With p the teacher's probabilities, z the student's logits and y the next token,

    KL - CE = sum of p log p - sum of p z + z_y,      d(KL - CE) / dz = [y] - p

for each token: the student's own log-sum-exp is in both and falls out. So a share w of KL is the student's loss plus
w (KL - CE), and neither pass needs more of the teacher than the logits of one chunk. The backward pass makes them again
from the teacher's last states, which are as small as those of any layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**22  # logits of the teacher that are there at a time

Head = Callable[[Tensor], Tensor]


def kl_less_ce(logits: Tensor, states: Tensor, head: Head, targets: Tensor, chunk: int | None = None) -> Tensor:
    """The sum over the tokens that have a target of KL(teacher || student) - CE(student); differentiable in `logits`.

    Args:
        logits: [B, N, V] of the student.
        states: [B, N, d] of the teacher, which `head` turns into its logits.
        head: of the teacher, [..., d] to [..., V].
        targets: [B, N] what each token is to predict, -100 for nothing.
        chunk: tokens at a time; None for as many as give `CHUNK` logits.
    """
    size = chunk or max(1, CHUNK // logits.shape[-1])
    found: Tensor = _KLLessCE.apply(logits.flatten(0, 1), states.flatten(0, 1), head, targets.flatten(), size)
    return found


class _KLLessCE(torch.autograd.Function):
    """Of logits [T, V] and states [T, d]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, states: Tensor, head: Head, targets: Tensor, size: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=logits.device)
        for at, wanted in _chunks(targets, size):
            log_p = _log_probabilities(head, states[at])
            z = logits[at].to(log_p.dtype)
            each = (log_p.exp() * (log_p - z)).sum(-1) + z.gather(-1, wanted.clamp(min=0)[:, None])[:, 0]
            total += torch.where(wanted >= 0, each, 0.0).sum(dtype=torch.float64)
        ctx.save_for_backward(states, targets)
        ctx.head, ctx.size, ctx.like = head, size, (logits.shape, logits.dtype)
        return total.to(torch.promote_types(logits.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, targets = ctx.saved_tensors
        shape, dtype = ctx.like
        found = torch.zeros(shape, dtype=dtype, device=states.device)
        for at, wanted in _chunks(targets, ctx.size):
            d = -_log_probabilities(ctx.head, states[at]).exp()
            d.scatter_add_(-1, wanted.clamp(min=0)[:, None], torch.ones_like(d[:, :1]))
            found[at] = (d * grads[0]).masked_fill_((wanted < 0)[:, None], 0.0)
        return found, None, None, None, None


def _chunks(targets: Tensor, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of the tokens in which something is to be predicted."""
    for start in range(0, len(targets), size):
        at = slice(start, start + size)
        if bool((targets[at] >= 0).any()):
            yield at, targets[at]


@torch.no_grad()
def _log_probabilities(head: Head, states: Tensor) -> Tensor:
    logits = head(states)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
