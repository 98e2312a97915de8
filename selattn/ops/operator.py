"""A backend's forward and backward pass as operators of torch: schema, fake kernel and autograd, made in one place.

torch's operators take tensors and plain numbers. A call (a `Request`, or another NamedTuple) is taken apart into those
by the names and types of its fields, those of the tuples inside it too, and put together again in the same way, so that
no backend counts arguments. A backend gives a `Kernel`: what it computes, what comes out (a NamedTuple of tensors), and
which tensors of the call can have a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from selattn.ops import transforms
from selattn.ops.patterns import Pattern, decode_pattern, encode_pattern
from selattn.ops.request import Attention, AuxOutput, Request
from selattn.ops.rules import PositionBias
from selattn.ops.selection import Selection

Call = TypeVar("Call", bound=tuple[Any, ...])
Results = TypeVar("Results", bound=tuple[Tensor, ...])
Saved = Mapping[str, Tensor]  # results of the forward pass, by name
Came = Mapping[str, Tensor | None]  # gradients of results, by name

DIFFERENTIABLE = ("output", "f", "memory", "final_f")  # of what comes back; all else is for the backward pass


class _Numbers(NamedTuple):
    """All of a call that is no tensor, in two lists: an operator of many arguments is slow to call."""

    ints: list[int]
    floats: list[float]


class _Codec(NamedTuple):
    """How a plain value is added to the numbers, and read from them again."""

    write: Callable[[Any, _Numbers], None]
    read: Callable[[Iterator[int], Iterator[float]], Any]


def _list_codec(encode: Callable[[Any], list[int]], decode: Callable[[list[int]], Any]) -> _Codec:
    """Of something that has a form of integers: their number goes before them."""

    def write(value: Any, to: _Numbers) -> None:
        code = encode(value)
        to.ints.append(len(code))
        to.ints.extend(code)

    return _Codec(write, lambda ints, _: decode([next(ints) for _ in range(next(ints))]))


def _optional(kind: Callable[[Any], Any], write: Callable[[Any, _Numbers], None], at: int) -> _Codec:
    """Of a number or None: whether it is there goes before it."""

    def write_or_none(value: Any, to: _Numbers) -> None:
        to.ints.append(int(value is not None))
        write(kind(0) if value is None else value, to)

    def read(*numbers: Any) -> Any:
        there, value = next(numbers[0]), next(numbers[at])
        return value if there else None

    return _Codec(write_or_none, read)


def _write_int(value: int, to: _Numbers) -> None:
    to.ints.append(int(value))


def _write_float(value: float, to: _Numbers) -> None:
    to.floats.append(float(value))


def _write_nothing(value: Any, to: _Numbers) -> None:
    """Of a function of positions, which is a tensor by the time that an operator is called."""
    assert value is None, "the bias by positions has to be evaluated before"


_CODECS: dict[Any, _Codec] = {
    int: _Codec(_write_int, lambda ints, _: next(ints)),
    bool: _Codec(_write_int, lambda ints, _: bool(next(ints))),
    float: _Codec(_write_float, lambda _, floats: next(floats)),
    int | None: _optional(int, _write_int, 0),
    float | None: _optional(float, _write_float, 1),
    Selection | None: _list_codec(Selection.encode, Selection.decode),
    Pattern | None: _list_codec(encode_pattern, decode_pattern),
    PositionBias | None: _Codec(_write_nothing, lambda *_: None),
}


class _OneTensor(NamedTuple):
    """A field that is a tensor, or can be given as one."""

    schema: str
    encode: Callable[[Any], Tensor | None] | None = None  # None: as it is
    decode: Callable[[Tensor | None], Any] | None = None


def _encode_strength(strength: float | Tensor) -> Tensor | None:
    """A tensor, so that a strength that changes is not compiled anew; None for 1."""
    if isinstance(strength, Tensor):
        return strength
    return None if strength == 1.0 else torch.tensor(strength, dtype=torch.float64)


def _decode_strength(code: Tensor | None) -> float | Tensor:
    return 1.0 if code is None else code


_TENSORS: dict[Any, _OneTensor] = {
    Tensor: _OneTensor("Tensor"),
    Tensor | None: _OneTensor("Tensor?"),
    float | Tensor: _OneTensor("Tensor?", _encode_strength, _decode_strength),
}


class Arguments:
    """How a NamedTuple becomes the arguments of an operator: its tensors, then two lists with all its numbers.

    Attributes:
        tensors: the tensors' names, and their types in the schema.
    """

    def __init__(self, cls: Any, prefix: str = "") -> None:
        self.cls = cls
        self.parts: list[_OneTensor | _Codec | Arguments] = []
        self.tensors: dict[str, str] = {}
        for name, kind in get_type_hints(cls).items():
            part = _TENSORS.get(kind) or _CODECS.get(kind) or Arguments(kind, f"{prefix}{name}_")
            self.parts.append(part)
            if isinstance(part, _OneTensor):
                self.tensors[prefix + name] = part.schema
            elif isinstance(part, Arguments):
                self.tensors |= part.tensors
        self._numbers = lru_cache(maxsize=256)(self._read_numbers)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the arguments."""
        return (*self.tensors, "ints", "floats")

    @property
    def schema(self) -> str:
        """The arguments as torch declares them."""
        return ", ".join([*(f"{kind} {name}" for name, kind in self.tensors.items()), "int[] ints", "float[] floats"])

    def flatten(self, value: Any) -> list[Any]:
        """The arguments."""
        tensors: list[Tensor | None] = []
        numbers = _Numbers([], [])
        self._take_apart(value, tensors, numbers)
        return [*tensors, *numbers]

    def _take_apart(self, value: Any, tensors: list[Tensor | None], numbers: _Numbers) -> None:
        for each, part in zip(value, self.parts, strict=True):
            if isinstance(part, Arguments):
                part._take_apart(each, tensors, numbers)
            elif isinstance(part, _OneTensor):
                tensors.append(each if part.encode is None else part.encode(each))
            else:
                part.write(each, numbers)

    def build(self, args: Iterable[Any]) -> Any:
        """What `flatten` took apart."""
        *tensors, ints, floats = args
        return self._build(iter(tensors), iter(self._numbers(tuple(ints), tuple(floats))))

    def _build(self, tensors: Iterator[Tensor | None], plain: Iterator[Any]) -> Any:
        values = []
        for part in self.parts:
            if isinstance(part, Arguments):
                values.append(part._build(tensors, plain))
            elif isinstance(part, _OneTensor):
                values.append(next(tensors) if part.decode is None else part.decode(next(tensors)))
            else:
                values.append(next(plain))
        return self.cls(*values)

    def _read_numbers(self, ints: tuple[int, ...], floats: tuple[float, ...]) -> tuple[Any, ...]:
        """The plain values of all fields, in their order."""
        numbers = iter(ints), iter(floats)

        def read(parts: list[_OneTensor | _Codec | Arguments]) -> Iterator[Any]:
            for part in parts:
                if isinstance(part, Arguments):
                    yield from read(part.parts)
                elif isinstance(part, _Codec):
                    yield part.read(*numbers)

        return tuple(read(self.parts))


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
            needed = frozenset(name for name, need in zip(kernel.gradients, next(given), strict=True) if need)
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
            schema=f"({', '.join(declared)}, bool[] needed, {self.arguments.schema}) -> ({_tensors(kernel.gradients)})",
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
        *tensors, ctx.ints, ctx.floats = inputs
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
        needs = dict(zip(self.arguments.names, ctx.needs_input_grad, strict=True))
        needed = [needs[name] for name in self.kernel.gradients]
        values = self._call_backward(*saved, *d_asked, needed, *tensors, ctx.ints, ctx.floats)
        found = dict(zip(self.kernel.gradients, values, strict=True))
        return tuple(found.get(name) if need else None for name, need in needs.items())

    def _refuse_second(self, ctx: Any, *came: Any) -> None:
        raise RuntimeError(
            f"selattn's {self.kernel.name} backend has no second derivative: "
            "use backend='reference' for double backward"
        )


def attend(operator: Operator[Request, Any], request: Request) -> Attention:
    """The output, and of what else is wanted the results of that name."""
    found = operator(request._replace(gradient=transforms.differentiated(request)))._asdict()
    asked = {name: found.get(name) for name, asked in request.wanted._asdict().items() if asked}
    return Attention(found["output"], AuxOutput(**asked))


def _tensors(names: tuple[str, ...]) -> str:
    return ", ".join(["Tensor"] * len(names))
