"""A backend's forward and backward pass as operators of torch: schema, fake kernel and autograd, made in one place.

torch's operators take tensors and plain numbers. `Request` is taken apart into those by the names and types of its
fields and put together again by the same names, so no backend counts arguments. A backend gives a `Kernel`: what it
computes, what comes out (a NamedTuple of tensors), and which tensors of the request can have a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from selattn.ops import transforms
from selattn.ops.patterns import Pattern, decode_pattern, encode_pattern
from selattn.ops.request import Request
from selattn.ops.selection import Selection

Results = TypeVar("Results", bound=tuple[Tensor, ...])
Saved = Mapping[str, Tensor]  # results of the forward pass, by name
Came = Mapping[str, Tensor | None]  # gradients of results, by name


class _Leaf(NamedTuple):
    """One argument of an operator: a field of the request, or of a tuple inside it."""

    path: tuple[str, ...]
    schema: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return "_".join(self.path)

    @property
    def is_tensor(self) -> bool:
        return self.schema.startswith("Tensor")


def _same(value: Any) -> Any:
    return value


# How a field of each type enters an operator: its type in the schema, and the way there and back.
_CODECS: dict[Any, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    Tensor: ("Tensor", _same, _same),
    Tensor | None: ("Tensor?", _same, _same),
    float: ("float", _same, _same),
    float | None: ("float?", _same, _same),
    int: ("int", _same, _same),
    int | None: ("int?", _same, _same),
    bool: ("bool", _same, _same),
    Selection | None: ("int[]", Selection.encode, Selection.decode),
    Pattern | None: ("int[]", encode_pattern, decode_pattern),
}


@cache
def _leaves() -> tuple[_Leaf, ...]:
    """The arguments that a request is taken apart into, in the order of its fields."""

    def of(cls: Any, path: tuple[str, ...]) -> list[_Leaf]:
        found = []
        for name, kind in get_type_hints(cls).items():
            at = (*path, name)
            found += [_Leaf(at, *_CODECS[kind])] if kind in _CODECS else of(kind, at)
        return found

    return tuple(of(Request, ()))


def _flatten(request: Request) -> tuple[Any, ...]:
    """The operator's arguments."""

    def value(path: tuple[str, ...]) -> Any:
        found: Any = request
        for name in path:
            found = getattr(found, name)
        return found

    return tuple(leaf.encode(value(leaf.path)) for leaf in _leaves())


def _unflatten(args: tuple[Any, ...]) -> Request:
    """The request of an operator's arguments."""
    tree: dict[str, Any] = {}
    for leaf, value in zip(_leaves(), args, strict=True):
        branch = tree
        for name in leaf.path[:-1]:
            branch = branch.setdefault(name, {})
        branch[leaf.path[-1]] = leaf.decode(value)

    def build(cls: Any, values: dict[str, Any]) -> Any:
        hints = get_type_hints(cls)
        return cls(**{k: build(hints[k], v) if isinstance(v, dict) else v for k, v in values.items()})

    found: Request = build(Request, tree)
    return found


@dataclass(frozen=True)
class Kernel(Generic[Results]):
    """What a backend computes.

    Attributes:
        name: of the backend; the operators are `selattn::NAME_forward` and `selattn::NAME_backward`.
        results: the NamedTuple that `forward` gives back. What was not asked for is an empty tensor.
        forward: computes the results.
        shapes: gives empty tensors of the results' shapes and types.
        backward: computes gradients by the names of the request's tensors. It gets the request, the saved results, the
            gradients of the results (None where nothing came) and the names that are needed.
        saved: the results that the backward pass reads.
        gradients: the tensors of the request that can have a gradient.
    """

    name: str
    results: type[Results]
    forward: Callable[[Request], Results]
    shapes: Callable[[Request], Results]
    backward: Callable[[Request, Saved, Came, frozenset[str]], Mapping[str, Tensor]]
    saved: tuple[str, ...]
    gradients: tuple[str, ...]


def make_operator(kernel: Kernel[Results]) -> Callable[[Request], Results]:
    """A function of a request that torch can differentiate, compile and export."""
    leaves = _leaves()
    fields: tuple[str, ...] = kernel.results._fields  # type: ignore[attr-defined]
    arguments = ", ".join(f"{leaf.schema} {leaf.name}" for leaf in leaves)
    given = [leaf.name for leaf in leaves]

    def results(values: tuple[Tensor, ...]) -> Results:
        return kernel.results(*values)

    forward = torch.library.custom_op(
        f"selattn::{kernel.name}_forward",
        lambda *args: kernel.forward(_unflatten(args)),
        mutates_args=(),
        schema=f"({arguments}) -> ({', '.join(['Tensor'] * len(fields))})",
    )
    forward.register_fake(lambda *args: kernel.shapes(_unflatten(args)))

    def split(args: tuple[Any, ...]) -> tuple[Request, dict[str, Tensor], dict[str, Tensor | None], frozenset[str]]:
        """The arguments of the backward operator: request, saved results, gradients of results, what is needed."""
        at = len(leaves)
        saved = dict(zip(kernel.saved, args[at : at + len(kernel.saved)], strict=True))
        at += len(kernel.saved)
        came = dict(zip(fields, args[at : at + len(fields)], strict=True))
        needed = frozenset(name for name, need in zip(kernel.gradients, args[-1], strict=True) if need)
        return _unflatten(args[: len(leaves)]), saved, came, needed

    def run_backward(*args: Any) -> tuple[Tensor, ...]:
        request, saved, came, needed = split(args)
        found = kernel.backward(request, saved, came, needed)
        # A gradient has the type of its input; what nobody needs is empty, as an operator returns tensors only.
        return tuple(
            found[name].to(getattr(request, name).dtype) if name in needed else request.query.new_empty(0)
            for name in kernel.gradients
        )

    backward = torch.library.custom_op(
        f"selattn::{kernel.name}_backward",
        run_backward,
        mutates_args=(),
        schema=f"({arguments}, {', '.join(f'Tensor saved_{name}' for name in kernel.saved)}, "
        f"{', '.join(f'Tensor? d_{name}' for name in fields)}, bool[] needed) "
        f"-> ({', '.join(['Tensor'] * len(kernel.gradients))})",
    )

    @backward.register_fake
    def _(*args: Any) -> tuple[Tensor, ...]:
        request, _, _, needed = split(args)
        return tuple(
            torch.empty_like(getattr(request, name), memory_format=torch.contiguous_format)
            if name in needed
            else request.query.new_empty(0)
            for name in kernel.gradients
        )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in output if not x.is_floating_point()))
        ctx.plain = [None if leaf.is_tensor else value for leaf, value in zip(leaves, inputs, strict=True)]
        tensors = [value if leaf.is_tensor else None for leaf, value in zip(leaves, inputs, strict=True)]
        ctx.there = [x is not None for x in tensors]
        found = results(output)
        ctx.save_for_backward(*(getattr(found, name) for name in kernel.saved), *(x for x in tensors if x is not None))

    def differentiate(ctx: Any, *came: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, tensors = ctx.saved_tensors[: len(kernel.saved)], list(ctx.saved_tensors[len(kernel.saved) :])
        args = [tensors.pop(0) if there else plain for there, plain in zip(ctx.there, ctx.plain, strict=True)]
        # A result that was not asked for is empty, and so is what comes back for it.
        came = tuple(x if x is not None and x.numel() else None for x in came)
        needs = dict(zip(given, ctx.needs_input_grad, strict=True))
        needed = [needs[name] for name in kernel.gradients]
        found = dict(zip(kernel.gradients, call_backward(*args, *saved, *came, needed), strict=True))
        return tuple(found[name] if needs[name] and name in found else None for name in given)

    def refuse(ctx: Any, *came: Any) -> None:
        raise RuntimeError(
            f"selattn's {kernel.name} backend has no second derivative: use backend='reference' for double backward"
        )

    call = transforms.Operator(forward, save, differentiate)
    call_backward = transforms.Operator(backward, transforms.save_nothing, refuse)
    return lambda request: results(call(*_flatten(request)))
