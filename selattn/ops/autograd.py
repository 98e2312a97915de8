"""A backend made differentiable: an autograd.Function in eager mode, a registered operator where a graph is made.

A backend's kernels compute from a `Request`, and an `Operator` makes them differentiable. A call of Python passes the
request itself to an `autograd.Function`. A graph (torch.compile, torch.export) has nodes of tensors and plain numbers
only: for it a NamedTuple is taken apart by the types of its fields (`Arguments`), and put together again in the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from selattn.ops.request import Attention, AuxOutput, Request
from selattn.ops.rules import COMBINE, Fixed, Pattern, Strided
from selattn.ops.selection import Selection

Saved = Mapping[str, Tensor]  # results of the forward pass, by name
Came = Mapping[str, Tensor | None]  # gradients of results, by name

DIFFERENTIABLE = ("output", "f", "memory", "final_f")  # of what comes back; all else is for the backward pass


def in_graph(x: Tensor) -> bool:
    """Whether a graph is being traced, or x is a fake or meta tensor: then registered operators run."""
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
        values: dict[str, Any] = {
            name: kind._read(numbers) if isinstance(kind, Arguments) else _read_number(kind, numbers)
            for name, kind in self._plain
        }
        values |= {name: None for name, _ in self._own}
        return self.cls(**values, **{name: inside._read(numbers) for name, inside in self._inside})

    def _filled(self, template: Any, tensors: Iterator[Tensor | None]) -> Any:
        """A template with its tensors in it."""
        values: dict[str, Any] = {}
        for name, is_strength in self._own:
            x = next(tensors)
            values[name] = 1.0 if x is None and is_strength else x
        for name, inside in self._inside:
            values[name] = inside._filled(getattr(template, name), tensors)
        return template._replace(**values)


_TENSORS: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float | Tensor: "Tensor?"}


def _write_number(kind: Any, value: Any, to: list[float]) -> None:
    """A number; optional and multi-valued fields are prefixed with their length."""
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
    """`run`, a function of one NamedTuple, as a node of a graph without gradients, called with what `flatten` gives.

    shapes: gives empty results; results: how many there are; writes: the arguments that `run` writes to.
    """
    schema = arguments.schema
    for letter, written in zip("abcdefgh", writes, strict=False):
        for kind in ("Tensor", "Tensor?"):
            to = kind.replace("Tensor", f"Tensor({letter}!)")
            schema = schema.replace(f"{kind} {written},", f"{to} {written},")
    made = torch.library.custom_op(
        f"selattn::{name}",
        lambda *args: run(arguments.build(args)),
        mutates_args=writes,
        schema=f"({schema}) -> {'Tensor' if results == 1 else f'({_tensors(results)})'}",
    )
    made.register_fake(lambda *args: shapes(arguments.build(args)))
    return made


class Operator:
    """A backend's attention as a function of a `Request` that torch can differentiate, compile and export.

    Args:
        name: of the backend; the nodes are `selattn::NAME_forward` and `selattn::NAME_backward`.
        results: the NamedTuple that `forward` gives back. What was not asked for is an empty tensor.
        forward: computes the results.
        shapes: gives empty tensors of the results' shapes and types.
        backward: computes gradients by the names of the request's tensors. It gets the request, the saved results, the
            gradients of the `DIFFERENTIABLE` results (None where nothing came) and the names that are needed.
        saved: the results that the backward pass reads.
        gradients: the tensors of the request that can have a gradient.
    """

    def __init__(
        self,
        name: str,
        *,
        results: Any,
        forward: Callable[[Request], Any],
        shapes: Callable[[Request], Any],
        backward: Callable[[Request, Saved, Came, frozenset[str]], Mapping[str, Tensor | None]],
        saved: tuple[str, ...],
        gradients: tuple[str, ...],
    ) -> None:
        self.name, self.results, self.run_forward, self.run_backward = name, results, forward, backward
        self.saved, self.gradients = saved, gradients
        self.arguments = Arguments(Request)
        self.fields: tuple[str, ...] = results._fields
        self.came = tuple(field for field in DIFFERENTIABLE if field in self.fields)
        # Of a call in Python: its own tensors (not the strength), and the results that are saved.
        self.tensors = tuple(field for field in self.arguments.tensors if field in Request._fields)
        self.tensors_of = itemgetter(*(Request._fields.index(field) for field in self.tensors))
        self.saved_of = itemgetter(*map(self.fields.index, saved))
        self.constant_of = itemgetter(*(i for i, field in enumerate(self.fields) if field not in self.came))
        self.forward = node(f"{name}_forward", self.arguments, self._run, shapes, len(self.fields))
        self.forward.register_autograd(self._differentiate, setup_context=self._save)
        self.backward = self._register_backward()

    def attend(self, request: Request) -> Attention:
        """The output, and of what else is wanted the results of that name."""
        wanted = request.wanted
        gradient = request.needs_grad  # a backward pass can follow
        if gradient:
            request = request._replace(gradient=True)
        if in_graph(request.query):
            computed = self.results(*self.forward(*self.arguments.flatten(request)))
        elif gradient:
            computed = self.results(*_Eager.apply(self, request, *self.tensors_of(request)))
        else:
            computed = self.run_forward(request)
        if not any(wanted):
            return Attention(computed.output)
        aux = (
            getattr(computed, name, None) if asked else None for name, asked in zip(wanted._fields, wanted, strict=True)
        )
        return Attention(computed.output, AuxOutput(*aux))

    def differentiate(self, request: Request, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor]:
        """The gradients that are needed, each of the type of its input."""
        given = self.run_backward(request, saved, came, needed)
        return {n: x.to(getattr(request, n).dtype) for n, x in given.items() if n in needed and x is not None}

    def flags(self, needs: Mapping[str, bool]) -> int:
        """What is needed, as the backward node is told: a bit for each of `gradients`."""
        return sum(needs[name] << i for i, name in enumerate(self.gradients))

    def asked(self, d_results: tuple[Tensor | None, ...]) -> Came:
        """The gradients that came: what was not asked for is empty, and so is what comes back for it."""
        each = zip(self.fields, d_results, strict=True)
        return {name: x if x is not None and x.numel() else None for name, x in each if name in self.came}

    def _run(self, request: Request) -> Any:
        return self.run_forward(request)

    def _register_backward(self) -> Any:
        declared = [*(f"Tensor saved_{name}" for name in self.saved), *(f"Tensor? d_{name}" for name in self.came)]

        def split(args: tuple[Any, ...]) -> tuple[Request, Saved, Came, frozenset[str]]:
            given = iter(args)
            saved = {name: next(given) for name in self.saved}
            came = {name: next(given) for name in self.came}
            flags = next(given)
            needed = frozenset(name for i, name in enumerate(self.gradients) if flags >> i & 1)
            return self.arguments.build(given), saved, came, needed

        def run(*args: Any) -> tuple[Tensor, ...]:
            made = self.differentiate(*split(args))  # a node gives tensors: those that nobody needs are empty
            return tuple(made[name] if name in made else args[0].new_empty(0) for name in self.gradients)

        op = torch.library.custom_op(
            f"selattn::{self.name}_backward",
            run,
            mutates_args=(),
            schema=f"({', '.join(declared)}, int needed, {self.arguments.schema}) -> ({_tensors(len(self.gradients))})",
        )

        @op.register_fake
        def _(*args: Any) -> tuple[Tensor, ...]:
            request, _, _, needed = split(args)
            return tuple(
                torch.empty_like(getattr(request, name), memory_format=torch.contiguous_format)
                if name in needed
                else args[0].new_empty(0)
                for name in self.gradients
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
        saved = [next(kept) for _ in self.saved]
        tensors = [next(kept) if there else None for there in ctx.there]
        needs = dict(zip(self.arguments.tensors, ctx.needs_input_grad, strict=False))
        values = self.backward(*saved, *self.asked(d_results).values(), self.flags(needs), *tensors, ctx.numbers)
        made = dict(zip(self.gradients, values, strict=True))
        return (*(made.get(name) if need else None for name, need in needs.items()), None)  # None for the numbers


class _Eager(torch.autograd.Function):
    """The passes of an `Operator`, called at once."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, request: Any, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        results = operator.run_forward(request)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*operator.constant_of(results))
        # Nothing but what is saved outlives the forward pass, and autograd notices if it is changed.
        ctx.operator, ctx.request = operator, request._replace(**dict.fromkeys(operator.tensors))
        ctx.save_for_backward(*operator.saved_of(results), *tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor | None) -> tuple[Tensor | None, ...]:
        operator, kept = ctx.operator, iter(ctx.saved_tensors)
        saved = dict(zip(operator.saved, kept, strict=False))
        tensors = dict(zip(operator.tensors, kept, strict=True))
        needs = dict(zip(operator.tensors, ctx.needs_input_grad[2:], strict=True))
        needed = frozenset(filter(needs.__getitem__, operator.gradients))
        with torch.no_grad():
            made = operator.differentiate(ctx.request._replace(**tensors), saved, operator.asked(d_results), needed)
        if torch.is_grad_enabled():  # the caller may differentiate once more
            inputs = [x for x in (*tensors.values(), *d_results) if x is not None]
            made = {name: _Last.apply(operator.name, x, *inputs) for name, x in made.items()}
        return (None, None, *map(made.get, operator.tensors))


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


def _tensors(count: int) -> str:
    return ", ".join(["Tensor"] * count)
