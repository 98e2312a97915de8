"""Measuring the attention backends beside PyTorch's flash attention, for `selattn bench` and benchmarks/."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.errors import SelattnError
from selattn.ops import AuxRequest, backends, selective_attention
from selattn.utils.memory import available_memory
from selattn.utils.timing import medians

RIVAL = "flash"  # PyTorch's scaled_dot_product_attention(is_causal=True)
CHECK_LENGTH = 333
WORST = 1e-4  # an error, relative to the largest number, above which a result counts as wrong


class Shape(NamedTuple):
    """[batch, heads, N, dim] of query, key and value."""

    batch: int = 1
    heads: int = 12
    dim: int = 64
    dtype: torch.dtype = torch.float32


def check_memory(lengths: Iterable[int], shape: Shape, reference_limit: int) -> None:
    """Raise for sizes that do not fit into the memory that is free: the system would kill the process half-way.

    A low estimate: query, key, value, the output and their gradients, the whole matrices of `reference` in fp64, and
    the F of all pairs that `sdpa` makes.
    """
    free, rows = available_memory(), shape.batch * shape.heads
    for n in (CHECK_LENGTH, *lengths):
        needed = 8 * rows * n * shape.dim * shape.dtype.itemsize
        needed += 2 * rows * n * n * 8 if n <= reference_limit else shape.batch * n * n * 4
        if needed > free:
            raise SelattnError(
                f"{shape.batch} x {shape.heads} heads of {shape.dim} at N = {n:,} need {needed / 1e9:,.1f} GB or more, "
                f"and {free / 1e9:.1f} GB are free: choose smaller sizes"
            )


def inputs(n: int, shape: Shape, forgets: bool, seed: int) -> tuple[Tensor, ...]:
    """query, key, value and the output's gradient; random, or such that nothing is ever selected."""
    generator = torch.Generator().manual_seed(seed)
    size = (shape.batch, shape.heads, n, shape.dim)
    query, key, value, gradient = (torch.randn(size, generator=generator) for _ in range(4))
    if not forgets:  # all logits of the selecting head are negative
        query[:, 0], key[:, 0] = -query[:, 0].abs(), key[:, 0].abs()
    made = (x.to(shape.dtype) for x in (query, key, value))
    return (*(x.requires_grad_() for x in made), gradient.to(shape.dtype))


def run(name: str, tensors: tuple[Tensor, ...], backward: bool, **options: Any) -> list[Tensor]:
    """One call of the backend (or of the rival, standard attention), with gradients if wanted."""
    query, key, value, gradient = tensors
    with torch.set_grad_enabled(backward):
        if name == RIVAL:
            output = nnf.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            output = selective_attention(query, key, value, backend=name, **options)
        return [output, *torch.autograd.grad(output, (query, key, value), gradient)] if backward else [output]


def check(name: str, tensors: tuple[Tensor, ...]) -> None:
    """Output and gradients against the reference in fp64: no times for wrong results."""
    exact = tuple(x.detach().double().requires_grad_(x.requires_grad) for x in tensors)
    allowed = WORST if tensors[0].dtype != torch.bfloat16 else 0.05
    for found, true in zip(run(name, tensors, True), run("reference", exact, True), strict=True):
        worst = ((found.double() - true).abs().max() / true.abs().max()).item()
        if not worst < allowed:
            raise SelattnError(f"backend {name!r} is wrong by {worst:.1e}: no times are printed for wrong results")


def living_share(tensors: tuple[Tensor, ...]) -> float:
    """The share of pairs that `cpu` computes, 1 where it is not built."""
    query, key, value = tensors[:3]
    if backends()["cpu"] is not None:
        return 1.0
    with torch.no_grad():
        _, aux = selective_attention(query, key, value, return_aux=AuxRequest(living=True), backend="cpu")
    assert aux.living is not None
    return aux.living.mean().item()


def measure(tensors: tuple[Tensor, ...], names: list[str], repeats: int) -> list[dict[str, Any]]:
    """A row for each backend, the rival first: milliseconds, and times the rival's in the same run."""
    rivals = (RIVAL, *names)
    times = {
        backward: medians({name: partial(run, name, tensors, backward) for name in rivals}, repeats)
        for backward in (False, True)
    }
    return [
        {
            "n": tensors[0].shape[2],
            "backend": name,
            "forward_ms": 1e3 * times[False][name],
            "both_ms": 1e3 * times[True][name],
            "forward_ratio": times[False][name] / times[False][RIVAL],
            "both_ratio": times[True][name] / times[True][RIVAL],
        }
        for name in rivals
    ]
