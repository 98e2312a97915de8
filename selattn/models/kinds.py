"""The kinds of attention that a layer can have, written as short texts in a config.

    selective          the paper's; `selective:W` sees the last W keys only
    standard           causal attention
    local:W            the last W keys, the own one included
    strided:L          Child et al.'s strided pattern with stride L
    fixed:L:C          Child et al.'s fixed pattern with blocks of L, the last C tokens of each seen by all

A config holds a list of them that is repeated over the layers: `["local:32", "local:32", "local:32", "standard"]` is
three local layers and a global one, again and again.
"""

from __future__ import annotations

from dataclasses import dataclass

from selattn.errors import SelattnError, unknown
from selattn.ops import Fixed, Pattern, Strided

# kind -> how many numbers it takes, at least and at most, and how it is written
_FORMS = {
    "selective": (0, 1, "selective or selective:WINDOW"),
    "standard": (0, 0, "standard"),
    "local": (1, 1, "local:WINDOW"),
    "strided": (1, 1, "strided:STRIDE"),
    "fixed": (2, 2, "fixed:STRIDE:SUMMARY"),
}


@dataclass(frozen=True)
class AttentionKind:
    """What one layer's attention does."""

    text: str
    selective: bool = False
    window: int | None = None
    pattern: Pattern | None = None


def parse_kind(text: str) -> AttentionKind:
    """The kind that a text of the table above means."""
    name, *rest = str(text).split(":")
    if name not in _FORMS:
        raise SelattnError(unknown("attention kind", name, _FORMS, [form for *_, form in _FORMS.values()]))
    least, most, form = _FORMS[name]
    if not least <= len(rest) <= most or not all(number.isdecimal() for number in rest):
        raise SelattnError(f"attention kind {text!r} is not of the form {form}")
    numbers = [int(number) for number in rest]
    if 0 in numbers:
        raise SelattnError(f"attention kind {text!r}: a window, stride or summary must be at least 1")
    if name == "strided":
        return AttentionKind(text, pattern=Strided(numbers[0]))
    if name == "fixed":
        return AttentionKind(text, pattern=Fixed(numbers[0], numbers[1]))
    return AttentionKind(text, selective=name == "selective", window=numbers[0] if numbers else None)


def layer_kinds(attention: list[str], layers: int) -> list[AttentionKind]:
    """The kind of each layer: the list, repeated."""
    return [parse_kind(attention[layer % len(attention)]) for layer in range(layers)]
