"""Rotary frequencies and their scaling, spelled as in transformers and computed by it.

A config has `rope_theta`, the base, and `rope_parameters`, None if positions are learned, else as transformers has it:

    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}

`rope_scaling`, its older name, is read, too. The type "default" is no scaling.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from selattn.errors import SelattnError

THETA = 10000.0
_CONTEXT = "original_max_position_embeddings"
# What each kind of scaling needs, and what it may have.
_KINDS: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), {_CONTEXT}),  # which says nothing here, but stands in files
    "linear": ({"factor"}, {_CONTEXT}),
    "dynamic": ({"factor"}, {_CONTEXT}),
    "yarn": (
        {"factor", _CONTEXT},
        {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    ),
    "llama3": ({"factor", _CONTEXT, "low_freq_factor", "high_freq_factor"}, set()),
}
_AT_LEAST = {"factor": 1.0, _CONTEXT: 1}


def read_rope(
    theta: float | None, parameters: dict[str, Any] | None, scaling: dict[str, Any] | None, context: int
) -> tuple[float, dict[str, Any]]:
    """The base, and the parameters, checked and with the base among them; `context` is the model's context size."""
    if scaling is not None and parameters is not None and scaling != parameters:
        raise SelattnError("rope_scaling is the older name of rope_parameters: give only the latter")
    given = parameters if parameters is not None else scaling if scaling is not None else {}
    if not isinstance(given, dict):
        raise SelattnError(f"rope_parameters must be a dict as in transformers, not {given!r}")
    checked = dict(given)
    kind = checked.setdefault("rope_type", checked.pop("type", "default"))
    checked.pop("type", None)
    base = checked.setdefault("rope_theta", THETA if theta is None else theta)
    if theta is not None and base != theta:
        raise SelattnError(f"rope_theta is {theta}, and {base} in rope_parameters: give it once")
    if kind in _KINDS and _CONTEXT in _KINDS[kind][0]:
        checked.setdefault(_CONTEXT, context)  # transformers' default
    _check(kind, {name: value for name, value in checked.items() if name not in ("rope_type", "rope_theta")})
    return base, checked


def without_replaced(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Settings from a file, without the base or the scaling that changes replace."""
    names = ("rope_parameters", "rope_scaling")
    new = next((changes[name] for name in names if name in changes), None)
    kept = dict(settings)
    if any(name in changes for name in names):
        gone = {*names, "rope_theta"} if isinstance(new, dict) and "rope_theta" in new else set(names)
        return {name: value for name, value in kept.items() if name not in gone}
    if "rope_theta" in changes:
        for name in names:
            if isinstance(kept.get(name), dict):
                kept[name] = {key: value for key, value in kept[name].items() if key != "rope_theta"}
    return kept


def _check(kind: Any, given: dict[str, Any]) -> None:
    """One line for a scaling that transformers would only warn of, or that is not one."""
    if kind not in _KINDS:
        raise SelattnError(f"unknown rope_type {kind!r} in rope_parameters: choose {', '.join(_KINDS)}")
    needed, allowed = _KINDS[kind]
    for name in sorted(needed - given.keys()):
        raise SelattnError(f"rope_parameters of the type {kind!r} need {name!r}")
    for name, value in given.items():
        if name not in needed | allowed:
            raise SelattnError(f"rope_parameters of the type {kind!r} have no {name!r}: leave it out")
        if name == "truncate":
            _must(isinstance(value, bool), name, "true or false", value)
        elif value is not None or name in needed:
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            least = _AT_LEAST.get(name)
            rule = "a number above 0" if least is None else f"a number of at least {least}"
            _must(number and (value > 0 if least is None else value >= least), name, rule, value)
    low, high = given.get("low_freq_factor"), given.get("high_freq_factor")
    if low is not None and high is not None and low >= high:
        raise SelattnError(f"low_freq_factor must be below high_freq_factor in rope_parameters, not {low} and {high}")
    slow, fast = given.get("beta_slow") or 1, given.get("beta_fast") or 32  # transformers' defaults
    if slow >= fast:
        raise SelattnError(f"beta_slow must be below beta_fast in rope_parameters, not {slow} and {fast}")


def _must(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise SelattnError(f"{name} in rope_parameters must be {rule}, not {value!r}")


class _Asked:
    """A config for transformers' functions."""

    def __init__(self, parameters: dict[str, Any], head_dim: int, context: int) -> None:
        self.rope_parameters = parameters
        self.head_dim = self.hidden_size = head_dim
        self.num_attention_heads = 1
        self.max_position_embeddings = context

    def standardize_rope_params(self) -> None:
        """They are in order."""


def rotary_frequencies(
    head_dim: int, context: int, parameters: dict[str, Any], positions: Tensor
) -> tuple[Tensor, float]:
    """Scaled: the angle per position of each pair of coordinates, [head_dim / 2] in fp32, and a factor of cos and sin.

    Those of the type "dynamic" depend on the last of the positions, as in transformers.
    """
    config: Any = _Asked(parameters, head_dim, context)
    length = positions.max() + 1 if parameters["rope_type"] == "dynamic" else None
    frequencies, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, positions.device, seq_len=length)
    return frequencies, scale
