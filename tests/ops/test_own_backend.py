"""A backend of the user's own, as docs/operator.md says: one class with `attend`, and no registration."""

import pytest
import torch
from torch.testing import assert_close

from selattn.errors import SelattnError
from selattn.ops import Attention, AuxOutput, Backend, Request, causal_attention, selective_attention
from tests.models.tiny import VARIANTS, tiny
from tests.ops.cases import attend

IDS = torch.arange(2 * 18).view(2, 18) * 7 % 29 + 1


class RowByRow(Backend):
    """The paper's formula, one query after the other, with nothing of selattn's own."""

    name = "row by row"

    def __init__(self):
        self.calls = 0

    def refusal(self, request: Request) -> str | None:
        refused = {
            "it has no soft cap": request.rules.softcap is not None,
            "it has no separate form": request.selection_query is not None,
        }
        return next((reason for reason, holds in refused.items() if holds), None)

    def attend(self, request: Request) -> Attention:
        self.calls += 1
        q, selection, keys = request.query, request.rules.selection, request.key.shape[2]
        shared = q.shape[1] // request.key.shape[1]
        k, v = (x.repeat_interleave(shared, 1) for x in (request.key, request.value))
        F = q.new_zeros(q.shape[0], request.masks, keys) if request.initial_f is None else request.initial_f
        index, rows, of_f, memory = torch.arange(keys), [], [], []
        start = torch.zeros(1, keys, dtype=torch.long) if request.start is None else request.start
        position = torch.where(start <= index, index, 0)
        for n in range(q.shape[2]):
            i = request.offset + n
            seen = ((index >= start[:, i, None]) & (index <= i) & (start <= index))[:, None]
            if request.until is not None:
                seen = seen & (i < request.until)
            if request.rules.window is not None:  # of tokens: padding does not count
                rank = (start <= position).long().cumsum(-1)
                seen = seen & (rank[:, i, None] - rank < request.rules.window)[:, None]
            seen = seen if request.mask is None else seen & request.mask[:, :, n]
            seen = seen if seen.shape[1] == 1 else seen.repeat_interleave(q.shape[1] // seen.shape[1], 1)
            logits = (q[:, :, n, None] @ k.mT).squeeze(2) * request.scale
            row = torch.zeros_like(logits)
            if selection is not None:
                S = logits[:, list(selection.heads)].relu() * request.rules.strength
                S = S.masked_fill(~seen | (index == i) | (start == index)[:, None], 0.0)
                of_f.append(F)
                memory.append((1 - F.clamp(max=request.rules.tau) / request.rules.tau).masked_fill(~seen, 0).sum(-1))
                row, F = F.repeat_interleave(q.shape[1] // F.shape[1], 1), F + S
            weights = (logits - row).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
            rows.append((weights[:, :, None] @ v).squeeze(2))
        found = {"final_f": F}
        if selection is not None:
            found |= {"f": torch.stack(of_f, 2), "memory": torch.stack(memory, 2)}
        asked = {name: x for name, x in found.items() if getattr(request.wanted, name)}
        return Attention(torch.stack(rows, 2), AuxOutput(**asked))


def test_in_the_operator():
    mine = RowByRow()
    leaves = [torch.randn(2, h, 9, d, dtype=torch.float64, requires_grad=True) for h, d in ((4, 3), (2, 3), (2, 5))]
    options = {"enable_gqa": True, "window": 5, "wanted": ("f", "memory", "final_f", "living")}
    got, want = (attend(*leaves, **options, backend=backend) for backend in (mine, "reference"))
    assert_close(list(got[:4]), list(want[:4]))
    assert got.living.tolist() == [1.0, 1.0]  # which it does not speak of
    assert_close(*(torch.autograd.grad(x.output.sin().sum() + x.memory.sum(), leaves) for x in (got, want)))
    assert_close(causal_attention(*leaves, enable_gqa=True, backend=mine), causal_attention(*leaves, enable_gqa=True))
    assert mine.calls == 2


def test_it_says_what_it_cannot_do():
    x = torch.randn(1, 2, 4, 3)
    with pytest.raises(SelattnError, match="'row by row' cannot do this: it has no soft cap; use reference or chunked"):
        selective_attention(x, x, x, softcap=2.0, backend=RowByRow())

    class Unfinished(Backend):
        name = "unfinished"

    with pytest.raises(NotImplementedError, match=r"the backend 'unfinished' has no attend\(request\)"):
        selective_attention(x, x, x, backend=Unfinished())


@pytest.mark.parametrize("variant", ["paper", "gqa", "several masks", "window", "half strength"])
@pytest.mark.parametrize("budgets", [None, 5])
def test_in_a_forward_and_in_generate(variant, budgets):
    """Its attention in every layer, its loss and gradients, and the same text."""
    mine, model = RowByRow(), tiny(**VARIANTS[variant])
    given = {"cache_budgets": budgets} if budgets else {}

    def everything():
        got = model(IDS, labels=IDS, use_cache=False, output_f=True, output_kept=True, **given)
        loss = torch.autograd.grad(got.loss, [x for x in model.parameters() if x.requires_grad], allow_unused=True)
        with torch.no_grad():
            text = model.generate(IDS[:, :9], max_new_tokens=6, do_sample=False, pad_token_id=0, **given)
        return got.logits, got.f, got.kept, [g for g in loss if g is not None], text

    want = everything()
    model.model.backend = mine
    got = everything()
    assert mine.calls == 2 * model.config.num_hidden_layers  # decoding is a step of plain PyTorch
    assert_close(got[:4], want[:4], rtol=1e-9, atol=1e-9)
    assert torch.equal(got[4], want[4])
