"""What the constraints and the shift of `Selection` mean in a kernel: the one place that asks for them.

They come as `HOW.switches`, made in ../arguments.py: numbers, 1 or 0, that are known when a kernel is compiled.
"""

import triton
import triton.language as tl


@triton.jit
def source_rows(r, HOW: tl.constexpr):
    """The rows whose S counts for rows r, and not for those before: with the shift, the rows one further up."""
    return r - HOW.switches.shift


@triton.jit
def rows_of_f(c, HOW: tl.constexpr):
    """How many rows F has if it goes on after the last query: with the shift, that one's S needs one more."""
    return c.N + HOW.switches.shift


@triton.jit
def spare_first(allowed, later, HOW: tl.constexpr):
    """Where a token may be selected: those `allowed`, and under constraint 2 only those `later` than the first."""
    if HOW.switches.protect_first:
        allowed = allowed & later
    return allowed


@triton.jit
def spare_self(allowed, others, HOW: tl.constexpr):
    """Where a token may be selected: those `allowed`, and under constraint 3 only `others` than the query's own."""
    if HOW.switches.protect_self:
        allowed = allowed & others
    return allowed


@triton.jit
def constrained(c, x, HOW: tl.constexpr):
    """S from the logits x of the selecting head: relu and strength. Who may be selected is not asked here."""
    if HOW.switches.relu:
        x = tl.where(x <= 0, 0.0, x)  # in this form NaN stays NaN
    if HOW.strength:
        x *= tl.load(c.strength)
    return x


@triton.jit
def reaches_logits(allowed, x, HOW: tl.constexpr):
    """Where a gradient of S goes on to the logits x, of the pairs in which selection is `allowed`."""
    if HOW.switches.relu:
        allowed = allowed & (x > 0)
    return allowed
