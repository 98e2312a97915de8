"""A backend's forward and backward pass, differentiated: at once where Python runs, as a node where a graph is made.

A backend gives a `Kernel`: what it computes, what comes out (a NamedTuple of tensors), and which tensors of the call
can have a gradient. What it computes from is a `Request`, or another NamedTuple. A call of Python passes that tuple
itself to an `autograd.Function`. A graph (torch.compile, torch.export) has nodes of tensors and plain numbers only: for
it the tuple is taken apart by the types of its fields (`Arguments`), and put together again in the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Generic, TypeVar, get_type_hints

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from selattn.ops.request import Attention, AuxOutput, Request
from selattn.ops.rules import COMBINE, Fixed, Pattern, Strided
from selattn.ops.selection import Selection

Call = TypeVar("Call", bound=tuple[Any, ...])
Results = TypeVar("Results", bound=tuple[Tensor, ...])
Saved = Mapping[str, Tensor]  # results of the forward pass, by name
Came = Mapping[str, Tensor | None]  # gradients of results, by name

DIFFERENTIABLE = ("output", "f", "memory", "final_f")  # of what comes back; all else is for the backward pass


def in_graph(x: Tensor) -> bool:
    """Whether a graph is being made of what happens to x, or x has no numbers: what runs then are registered nodes."""
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return True
    return x.is_meta or type(x) not in (Tensor, torch.nn.Parameter)


def in_transform() -> bool:
    """Whether a transform of `torch.func` is under way."""
    return torch._C._are_functorch_transforms_active()


class Arguments:
    """A NamedTuple as a node takes it: its tensors by name, those of tuples inside it last, and a list of its numbers.

    One list, because a node of many arguments is slow to call.

    Attributes:
        tensors: the tensors' names, and their types in the schema.
        schema: the arguments as torch declares them.
    """

    def __init__(self, cls: Any, prefix: str = "") -> None:
        self.cls = cls
        self.tensors: dict[str, str] = {}
        self._plain: list[tuple[str, Any]] = []  # fields without tensors, and what is inside them
        self._own: list[tuple[str, bool]] = []  # tensors; whether one is the strength, which can be a number
        self._inside: list[tuple[str, Arguments]] = []
        for name, kind in get_type_hints(cls).items():
            if kind in _TENSORS:
                self.tensors[prefix + name] = _TENSORS[kind]
                self._own.append((name, kind == float | Tensor))
            elif (part := Arguments(kind, f"{prefix}{name}_") if hasattr(kind, "_fields") else None) and part.tensors:
                self._inside.append((name, part))
            else:
                self._plain.append((name, part or kind))
        for _, part in self._inside:
            self.tensors |= part.tensors
        self.schema = ", ".join([*(f"{kind} {name}" for name, kind in self.tensors.items()), "float[] numbers"])
        self._template = lru_cache(maxsize=256)(lambda numbers: self._read(iter(numbers)))

    def flatten(self, value: Any) -> list[Any]:
        """The node's arguments for a value."""
        tensors: list[Tensor | None] = []
        numbers: list[float] = []
        self._write(value, tensors, numbers)
        return [*tensors, numbers]

    def build(self, args: Any) -> Any:
        """What `flatten` took apart."""
        *tensors, numbers = args
        return self._filled(self._template(tuple(numbers)), iter(tensors))

    def _write(self, value: Any, tensors: list[Tensor | None], numbers: list[float]) -> None:
        for name, kind in self._plain:
            if isinstance(kind, Arguments):
                kind._write(getattr(value, name), tensors, numbers)
            else:
                _write_number(kind, getattr(value, name), numbers)
        for name, is_strength in self._own:
            x = getattr(value, name)
            if is_strength and not isinstance(x, Tensor):
                # A tensor, so that a strength that changes is not compiled again; None for 1.
                x = None if x == 1.0 else torch.tensor(x, dtype=torch.float64)
            tensors.append(x)
        for name, inside in self._inside:
            inside._write(getattr(value, name), tensors, numbers)

    def _read(self, numbers: Iterator[float]) -> Any:
        """The value that was written as these numbers, with None for each tensor; in the order of `_write`."""
        found: dict[str, Any] = {
            name: kind._read(numbers) if isinstance(kind, Arguments) else _read_number(kind, numbers)
            for name, kind in self._plain
        }
        found |= {name: None for name, _ in self._own}
        return self.cls(**found, **{name: inside._read(numbers) for name, inside in self._inside})

    def _filled(self, template: Any, tensors: Iterator[Tensor | None]) -> Any:
        """A template with its tensors in it."""
        found: dict[str, Any] = {}
        for name, is_strength in self._own:
            x = next(tensors)
            found[name] = 1.0 if x is None and is_strength else x
        for name, inside in self._inside:
            found[name] = inside._filled(getattr(template, name), tensors)
        return template._replace(**found)


_TENSORS: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float | Tensor: "Tensor?"}


def _write_number(kind: Any, value: Any, to: list[float]) -> None:
    """A number; before what may be None, or is several, stands how many they are."""
    if kind in (int, float, bool):
        to.append(float(value))
    elif value is None:
        to.append(0.0)
    elif isinstance(value, Selection):
        code = [*value.switches.values(), *value.heads]
        to += [float(x) for x in (len(code), *code)]
    elif isinstance(value, (Strided, Fixed)):
        to += [3.0, float(value.stride), float(getattr(value, "summary", 0)), float(COMBINE.index(value.combine))]
    else:
        assert not callable(value), "the bias by positions has to be evaluated before"
        to += [1.0, float(value)]


def _read_number(kind: Any, numbers: Iterator[float]) -> Any:
    """What was written."""
    if kind in (int, float, bool):
        return kind(next(numbers))
    code = [next(numbers) for _ in range(int(next(numbers)))]
    if not code:
        return None
    if kind == Selection | None:
        heads = tuple(int(head) for head in code[4:])
        return Selection(heads if len(heads) > 1 else heads[0], *map(bool, code[:4]))
    if kind == Pattern | None:
        stride, summary, combine = map(int, code)
        return Fixed(stride, summary, COMBINE[combine]) if summary else Strided(stride, COMBINE[combine])
    return (int if kind == int | None else float)(code[0])


def node(name: str, arguments: Arguments, run: Any, shapes: Any, results: int, writes: tuple[str, ...] = ()) -> Any:
    """`run` of a NamedTuple as a node of a graph, without gradients; `shapes` gives empty results. Gets `flatten`ed."""
    schema = arguments.schema
    for letter, written in zip("abcdefgh", writes, strict=False):
        for kind in ("Tensor", "Tensor?"):
            to = kind.replace("Tensor", f"Tensor({letter}!)")
            schema = schema.replace(f"{kind} {written},", f"{to} {written},")
    found = torch.library.custom_op(
        f"selattn::{name}",
        lambda *args: run(arguments.build(args)),
        mutates_args=writes,
        schema=f"({schema}) -> {'Tensor' if results == 1 else f'({_tensors(results)})'}",
    )
    found.register_fake(lambda *args: shapes(arguments.build(args)))
    return found


@dataclass(frozen=True)
class Kernel(Generic[Call, Results]):
    """What a backend computes.

    Attributes:
        name: of the backend; the nodes are `selattn::NAME_forward` and `selattn::NAME_backward`.
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
        forward: the node; its arguments are `arguments.flatten(call)`.
        backward: that of the backward pass: saved results, gradients that came, what is needed, and the same arguments.
    """

    def __init__(self, kernel: Kernel[Call, Results]) -> None:
        self.kernel = kernel
        self.arguments = Arguments(kernel.call)
        self.fields: tuple[str, ...] = kernel.results._fields  # type: ignore[attr-defined]
        self.came = tuple(name for name in DIFFERENTIABLE if name in self.fields)
        # Of a call in Python: its own tensors (not the strength), and the results that are saved.
        self.tensors = tuple(name for name in self.arguments.tensors if name in kernel.call._fields)  # type: ignore[attr-defined]
        self.tensors_of = itemgetter(*(kernel.call._fields.index(name) for name in self.tensors))  # type: ignore[attr-defined]
        self.saved_of = itemgetter(*map(self.fields.index, kernel.saved))
        self.constant_of = itemgetter(*(i for i, name in enumerate(self.fields) if name not in self.came))
        self.forward, self.backward = self._register_forward(), self._register_backward()

    def __call__(self, call: Call, gradient: bool) -> Results:
        """The results; `gradient`: a backward pass can follow."""
        if in_graph(call[0]):
            return self.kernel.results(*self.forward(*self.arguments.flatten(call)))
        if not gradient:
            return self.kernel.forward(call)
        return self.kernel.results(*_Eager.apply(self, call, *self.tensors_of(call)))

    def _run(self, call: Call) -> Results:
        return self.kernel.forward(call)

    def gradients(self, call: Call, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor]:
        """Those that are needed, each of the type of its input."""
        found = self.kernel.backward(call, saved, came, needed)
        return {name: x.to(getattr(call, name).dtype) for name, x in found.items() if name in needed and x is not None}

    def _register_forward(self) -> Any:
        kernel = self.kernel
        op = node(f"{kernel.name}_forward", self.arguments, self._run, kernel.shapes, len(self.fields))
        op.register_autograd(self._differentiate, setup_context=self._save)
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
            found = self.gradients(*split(args))  # what nobody needs is empty: a node gives tensors
            return tuple(found[name] if name in found else args[0].new_empty(0) for name in kernel.gradients)

        results = _tensors(len(kernel.gradients))
        op = torch.library.custom_op(
            f"selattn::{kernel.name}_backward",
            run,
            mutates_args=(),
            schema=f"({', '.join(declared)}, int needed, {self.arguments.schema}) -> ({results})",
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
        ctx.mark_non_differentiable(*self.constant_of(output))
        *tensors, ctx.numbers = inputs
        ctx.there = [x is not None for x in tensors]
        ctx.save_for_backward(*self.saved_of(output), *(x for x in tensors if x is not None))

    def _differentiate(self, ctx: Any, *d_results: Tensor | None) -> tuple[Tensor | None, ...]:
        kept = iter(ctx.saved_tensors)
        saved = [next(kept) for _ in self.kernel.saved]
        tensors = [next(kept) if there else None for there in ctx.there]
        needs = dict(zip(self.arguments.tensors, ctx.needs_input_grad, strict=False))
        flags = self.flags(needs)
        values = self.backward(*saved, *self.asked(d_results).values(), flags, *tensors, ctx.numbers)
        found = dict(zip(self.kernel.gradients, values, strict=True))
        return (*(found.get(name) if need else None for name, need in needs.items()), None)  # none for the numbers

    def asked(self, d_results: tuple[Tensor | None, ...]) -> Came:
        """The gradients that came: what was not asked for is empty, and so is what comes back for it."""
        found: dict[str, Tensor | None] = {}
        for name, x in zip(self.fields, d_results, strict=True):
            if name in self.came:
                found[name] = x if x is not None and x.numel() else None
        return found

    def flags(self, needs: Mapping[str, bool]) -> int:
        """What is needed, as the backward node is told: a bit for each of the kernel's gradients."""
        return sum(needs[name] << i for i, name in enumerate(self.kernel.gradients))


class _Eager(torch.autograd.Function):
    """The passes of an `Operator`, called at once."""

    @staticmethod
    def forward(ctx: Any, operator: Operator[Any, Any], call: Any, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        found = operator.kernel.forward(call)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*operator.constant_of(found))
        # Nothing but what is saved outlives the backward pass, and nobody changes it unnoticed.
        ctx.operator, ctx.call = operator, call._replace(**dict.fromkeys(operator.tensors))
        ctx.save_for_backward(*operator.saved_of(found), *tensors)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor | None) -> tuple[Tensor | None, ...]:
        operator, kept = ctx.operator, iter(ctx.saved_tensors)
        saved = dict(zip(operator.kernel.saved, kept, strict=False))
        tensors = dict(zip(operator.tensors, kept, strict=True))
        needs = dict(zip(operator.tensors, ctx.needs_input_grad[2:], strict=True))
        needed = frozenset(filter(needs.__getitem__, operator.kernel.gradients))
        with torch.no_grad():
            found = operator.gradients(ctx.call._replace(**tensors), saved, operator.asked(d_results), needed)
        if torch.is_grad_enabled():  # somebody may differentiate once more
            inputs = [x for x in (*tensors.values(), *d_results) if x is not None]
            found = {name: _Last.apply(operator.kernel.name, x, *inputs) for name, x in found.items()}
        return (None, None, *map(found.get, operator.tensors))


class _Last(torch.autograd.Function):
    """A gradient as it is, which has no gradient itself."""

    @staticmethod
    def forward(ctx: Any, name: str, gradient: Tensor, *inputs: Tensor) -> Tensor:
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *came: Any) -> Any:
        raise RuntimeError(
            f"selattn's {ctx.name} backend has no second derivative: use backend='reference' for double backward"
        )


def attend(operator: Operator[Request, Any], request: Request) -> Attention:
    """The output, and of what else is wanted the results of that name."""
    wanted, gradient = request.wanted, request.needs_grad
    found = operator(request._replace(gradient=True) if gradient else request, gradient)
    if not any(wanted):
        return Attention(found.output)
    return Attention(
        found.output,
        AuxOutput(
            *(getattr(found, name, None) if asked else None for name, asked in zip(wanted._fields, wanted, strict=True))
        ),
    )


def _tensors(count: int) -> str:
    return ", ".join(["Tensor"] * count)
