"""A backend's forward and backward pass as operators of torch: schema, fake kernel and autograd, made in one place.

A backend gives a `Kernel`: what it computes, what comes out (a NamedTuple of tensors), and which tensors of the call
can have a gradient. What it computes from is a `Request`, or another NamedTuple; see `selattn.ops.arguments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from selattn.ops import transforms
from selattn.ops.arguments import Arguments
from selattn.ops.request import Attention, AuxOutput, Request

Call = TypeVar("Call", bound=tuple[Any, ...])
Results = TypeVar("Results", bound=tuple[Tensor, ...])
Saved = Mapping[str, Tensor]  # results of the forward pass, by name
Came = Mapping[str, Tensor | None]  # gradients of results, by name

DIFFERENTIABLE = ("output", "f", "memory", "final_f")  # of what comes back; all else is for the backward pass


@dataclass(frozen=True)
class Kernel(Generic[Call, Results]):
    """What a backend computes.

    Attributes:
        name: of the backend; the operators are `selattn::NAME_forward` and `selattn::NAME_backward`.
        call: what it computes from, a NamedTuple: `Request`, or less.
        results: the NamedTuple that `forward` gives back. What was not asked for is an empty tensor.
        forward: computes the results.
        shapes: gives empty tensors of the results' shapes and types.
        backward: computes gradients by the names of the call's tensors. It gets the call, the saved results, the
            gradients of the `DIFFERENTIABLE` results (None where nothing came) and the names that are needed.
        saved: the results that the backward pass reads.
        gradients: the tensors of the call that can have a gradient.
    """

    name: str
    call: type[Call]
    results: type[Results]
    forward: Callable[[Call], Results]
    shapes: Callable[[Call], Results]
    backward: Callable[[Call, Saved, Came, frozenset[str]], Mapping[str, Tensor | None]]
    saved: tuple[str, ...]
    gradients: tuple[str, ...]


class Operator(Generic[Call, Results]):
    """A function of a call that torch can differentiate, compile and export.

    Attributes:
        forward: the registered operator; its arguments are `arguments.flatten(call)`.
        backward: that of the backward pass: saved results, gradients that came, what is needed, and the same arguments.
    """

    def __init__(self, kernel: Kernel[Call, Results]) -> None:
        self.kernel = kernel
        self.arguments = Arguments(kernel.call)
        self.fields: tuple[str, ...] = kernel.results._fields  # type: ignore[attr-defined]
        self.came = tuple(name for name in DIFFERENTIABLE if name in self.fields)
        self.forward, self.backward = self._register_forward(), self._register_backward()
        self._call = transforms.Operator(self.forward, self._save, self._differentiate)
        self._call_backward = transforms.Operator(self.backward, transforms.save_nothing, self._refuse_second)

    def __call__(self, call: Call) -> Results:
        return self.kernel.results(*self._call(*self.arguments.flatten(call)))

    def _register_forward(self) -> Any:
        kernel, arguments = self.kernel, self.arguments
        op = torch.library.custom_op(
            f"selattn::{kernel.name}_forward",
            lambda *args: kernel.forward(arguments.build(args)),
            mutates_args=(),
            schema=f"({arguments.schema}) -> ({_tensors(self.fields)})",
        )
        op.register_fake(lambda *args: kernel.shapes(arguments.build(args)))
        return op

    def _register_backward(self) -> Any:
        kernel = self.kernel
        declared = [*(f"Tensor saved_{name}" for name in kernel.saved), *(f"Tensor? d_{name}" for name in self.came)]

        def split(args: tuple[Any, ...]) -> tuple[Any, Saved, Came, frozenset[str]]:
            given = iter(args)
            saved = {name: next(given) for name in kernel.saved}
            came = {name: next(given) for name in self.came}
            flags = next(given)
            needed = frozenset(name for i, name in enumerate(kernel.gradients) if flags >> i & 1)
            return self.arguments.build(given), saved, came, needed

        def run(*args: Any) -> tuple[Tensor, ...]:
            call, saved, came, needed = split(args)
            found = kernel.backward(call, saved, came, needed)

            def result(name: str) -> Tensor:
                """A gradient has the type of its input; what nobody needs is empty: an operator gives tensors."""
                x = found.get(name)
                return args[0].new_empty(0) if x is None or name not in needed else x.to(getattr(call, name).dtype)

            return tuple(result(name) for name in kernel.gradients)

        op = torch.library.custom_op(
            f"selattn::{kernel.name}_backward",
            run,
            mutates_args=(),
            schema=f"({', '.join(declared)}, int needed, {self.arguments.schema}) -> ({_tensors(kernel.gradients)})",
        )

        @op.register_fake
        def _(*args: Any) -> tuple[Tensor, ...]:
            call, _, _, needed = split(args)
            return tuple(
                torch.empty_like(getattr(call, name), memory_format=torch.contiguous_format)
                if name in needed
                else args[0].new_empty(0)
                for name in kernel.gradients
            )

        return op

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        found = dict(zip(self.fields, output, strict=True))
        ctx.mark_non_differentiable(*(x for name, x in found.items() if name not in self.came))
        *tensors, ctx.numbers = inputs
        ctx.there = [x is not None for x in tensors]
        saved = [found[name] for name in self.kernel.saved]
        ctx.save_for_backward(*saved, *(x for x in tensors if x is not None))

    def _differentiate(self, ctx: Any, *d_results: Tensor | None) -> tuple[Tensor | None, ...]:
        kept = iter(ctx.saved_tensors)
        saved = [next(kept) for _ in self.kernel.saved]
        tensors = [next(kept) if there else None for there in ctx.there]
        # What was not asked for is empty, and so is what comes back for it.
        came = dict(zip(self.fields, d_results, strict=True))
        d_asked = [x if x is not None and x.numel() else None for x in (came[name] for name in self.came)]
        needs = dict(zip(self.arguments.tensors, ctx.needs_input_grad, strict=False))
        values = self._call_backward(*saved, *d_asked, self.flags(needs), *tensors, ctx.numbers)
        found = dict(zip(self.kernel.gradients, values, strict=True))
        return (*(found.get(name) if need else None for name, need in needs.items()), None)  # none for the numbers

    def flags(self, needs: Mapping[str, bool]) -> int:
        """What is needed, as the backward operator is told: a bit for each of the kernel's gradients."""
        return sum(needs[name] << i for i, name in enumerate(self.kernel.gradients))

    def _refuse_second(self, ctx: Any, *came: Any) -> None:
        raise RuntimeError(
            f"selattn's {self.kernel.name} backend has no second derivative: "
            "use backend='reference' for double backward"
        )


def attend(operator: Operator[Request, Any], request: Request) -> Attention:
    """The output, and of what else is wanted the results of that name."""
    wanted = request.wanted
    gradient = transforms.differentiated(request)
    found: Any = operator(request if gradient == request.gradient else request._replace(gradient=gradient))
    if not any(wanted):
        return Attention(found.output)
    return Attention(
        found.output,
        AuxOutput(
            *(getattr(found, name, None) if asked else None for name, asked in zip(wanted._fields, wanted, strict=True))
        ),
    )


def _tensors(names: tuple[str, ...]) -> str:
    return ", ".join(["Tensor"] * len(names))
