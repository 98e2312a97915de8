"""Errors found in public versions of selective attention, each pinned: the wrong form stands beside and differs.

What concerns the cache, the loss of whole models and other eviction methods is pinned where those live.
"""

import warnings

import pytest
import torch
from torch.nn import functional as nnf
from torch.testing import assert_close

from selattn.errors import SelattnError
from selattn.ops import Sequences, selective_attention
from tests.ops.cases import BACKENDS, attend, returns
from tests.ops.literal import pseudo_code

B, H, N, D = 2, 2, 9, 4
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def qkv():
    return [torch.randn(B, H, N, D, dtype=torch.float64) for _ in range(3)]


def logits_of(q, k):
    return (q @ k.mT / D**0.5).masked_fill(~CAUSAL, -torch.inf)


def selected(logits, first=True, diagonal=True):
    """S of head 0, with the constraints asked for."""
    S = logits[:, 0].relu()
    S = S.index_fill(-1, torch.tensor([0]), 0) if first else S
    return S * (1 - torch.eye(N)) if diagonal else S


def shifted(S):
    return nnf.pad(S, (0, 0, 1, -1))


def mixed(logits, F, v):
    return torch.softmax(logits - F.unsqueeze(1), -1) @ v


def assert_right_not_wrong(got, right, wrong):
    assert_close(got, right, rtol=0, atol=1e-12)
    assert (right - wrong).abs().max() > 1e-2


def test_sum_runs_over_queries_not_over_keys(qkv, backend):
    logits = logits_of(*qkv[:2])
    S = shifted(selected(logits))
    right, wrong = (mixed(logits, S.cumsum(axis), qkv[2]) for axis in (-2, -1))
    assert_right_not_wrong(selective_attention(*qkv, backend=backend), right, wrong)


def test_backward_survives_what_a_write_in_place_after_relu_breaks(qkv, backend):
    q, k, v = (x.requires_grad_() for x in qkv)
    S = logits_of(q, k)[:, 0].relu()
    S[..., 0] = 0  # relu's backward needs the value that this overwrites
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        S.sum().backward()
    got = torch.autograd.grad(selective_attention(q, k, v, backend=backend).sin().sum(), (q, k, v))
    want = torch.autograd.grad(pseudo_code(q, k, v)[0].sin().sum(), (q, k, v))
    assert_close(got, want, rtol=0, atol=1e-11)


def test_selection_is_causal(qkv, backend):
    """S without the causal mask: tokens are masked by tokens before them."""
    logits, free = logits_of(*qkv[:2]), qkv[0] @ qkv[1].mT / D**0.5
    right, wrong = (mixed(logits, shifted(selected(x)).cumsum(-2), qkv[2]) for x in (logits, free))
    assert_right_not_wrong(selective_attention(*qkv, backend=backend), right, wrong)


def test_diagonal_is_cleared_in_every_batch_item(qkv, backend):
    logits = logits_of(*qkv[:2])
    trick = selected(logits, diagonal=False)
    trick[0].fill_diagonal_(0)
    right, wrong = (mixed(logits, shifted(S).cumsum(-2), qkv[2]) for S in (selected(logits), trick))
    assert_close(right[0], wrong[0], rtol=0, atol=0)
    assert_right_not_wrong(selective_attention(*qkv, backend=backend), right, wrong)


def test_protected_column_under_left_padding_is_the_first_real_token(qkv, backend):
    pads = 3
    real = (torch.arange(N) >= pads).expand(B, N)
    logits = logits_of(*qkv[:2]).masked_fill(~real[:, None, None], -torch.inf)
    S = selected(logits)  # protects column 0, a pad
    assert S[..., pads].max() > 0.1
    protected = S.index_fill(-1, torch.tensor([pads]), 0)
    right, wrong = (mixed(logits, shifted(x).cumsum(-2), qkv[2])[:, :, pads:] for x in (protected, S))
    got = attend(*qkv, sequences=Sequences.from_mask(real), **returns(backend), backend=backend)
    assert_right_not_wrong(got.output[:, :, pads:], right, wrong)
    assert (got.final_f[..., pads] == 0).all()
    assert backend == "cpu" or (got.f[..., pads] == 0).all()


def test_f_is_not_lost_between_decoding_steps(qkv, backend):
    q, k, v = qkv
    last = q[:, :, -1:]
    with pytest.raises(SelattnError, match="pass initial_f="):
        selective_attention(last, k, v, backend=backend)
    before = attend(*(x[:, :, :-1] for x in qkv), backend=backend, wanted=("final_f",)).final_f
    got = selective_attention(last, k, v, initial_f=before, backend=backend)
    forgetful = selective_attention(last, k, v, initial_f=torch.zeros_like(before), backend=backend)
    assert_right_not_wrong(got, pseudo_code(q, k, v)[0][:, :, -1:], forgetful)


def test_an_evicted_key_does_not_come_back(qkv, backend):
    """Top-k taken afresh in each row hides a key in one row and shows it in the next."""
    key, row = 2, 5
    q, k, v = qkv
    v = torch.zeros_like(v)
    v[:, :, key] = 1.0  # the output is the weight of that key
    until = torch.full((B, N), N).index_fill(1, torch.tensor([key]), row)
    got = selective_attention(q, k, v, visible_until=until, backend=backend)
    assert (got[:, :, key:row] > 0).all()
    assert (got[:, :, row:] == 0).all()
    if backend == "cpu":  # it takes no mask that could bring a key back
        return
    afresh = CAUSAL.clone()
    afresh[row, key] = False
    back = selective_attention(q, k, v, attn_mask=afresh, backend=backend)
    assert (back[:, :, row] == 0).all()
    assert (back[:, :, row + 1 :] > 0).all()


def test_memory_is_one_number_for_each_row(qkv, backend):
    """(i - sum) broadcast to a matrix: [N, 1] minus [B, N] instead of [N] minus [B, N]."""
    got = attend(*qkv, backend=backend, wanted=("memory",)).memory
    taken = pseudo_code(*qkv)[1].clamp(max=1).sum(-1)
    right, wrong = torch.arange(1, N + 1) - taken, torch.arange(1, N + 1)[:, None] - taken[:1]
    assert got.shape == (B, 1, N)
    assert_close(got[:, 0], right, rtol=0, atol=1e-12)
    assert wrong.shape == (N, N)
    assert abs(wrong.max() - right.max()) > 1e-2


def test_x_transformers_agrees_on_full_sequences(qkv, backend):
    """The public version that is right: a second opinion, gradients included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers.attend import selective_attn
    q, k, v = (x.requires_grad_() for x in qkv)
    theirs = torch.softmax(selective_attn(logits_of(q, k)), -1) @ v
    ours = selective_attention(q, k, v, backend=backend)
    assert_close(ours, theirs, rtol=0, atol=1e-12)
    upstream = torch.randn_like(ours)
    got, want = (torch.autograd.grad(x, (q, k, v), upstream) for x in (ours, theirs))
    assert_close(got, want, rtol=0, atol=1e-11)
