"""Random calls of the compiled backend, held against the reference: shapes, layouts, masks, switches and odd numbers.

    python -m tests.ops.fuzz --count 10000        # prints what fails, and with which seed

An example is all in its seed. The truth is the reference in fp64. The error of the compiled backend, in the worst
element, may be twice that of the reference in the same precision. Where the reference has no error, by luck (all keys
equal), because of its method (it keeps the weights) or because it is the truth itself (fp64), it may be what rounding
does: what the truth itself moves when its inputs move by a rounding error, what `rounding_of_weights` says of weights
with large exponents, and for a sum of n terms sqrt(n) * eps of their sizes, as random roundings add up.

Results are continuous everywhere, gradients are not where a selecting logit is 0 or F is tau: where one is too near to
tell, gradients of query and key, or the gradient of M, are left out of the comparison.
"""

import argparse
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from selattn.ops import Selection, Sequences
from selattn.ops.backends import tile
from tests.ops.cases import Case, attend

DTYPES = (torch.float32, torch.float32, torch.float64, torch.float64, torch.bfloat16)
VALUES = ("normal", "normal", "normal", "sharp", "huge", "tiny", "equal", "equal rows", "zeros", "denormal", "mixed")
LAYOUTS = ("dense", "dense", "transposed", "strided", "wide rows", "one for all")


@dataclass
class Example:
    """One call: inputs in the precision under test, options, upstream gradients (none: results only)."""

    seed: int
    dtype: torch.dtype
    threads: int
    inputs: dict[str, torch.Tensor]
    options: dict[str, Any]
    upstream: dict[str, torch.Tensor] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()

    def __str__(self):
        shapes = {name: tuple(x.shape) for name, x in self.inputs.items()}
        options = {
            name: x for name, x in self.options.items() if x is not None and name not in ("sequences", "enable_gqa")
        }
        options["sequences"] = self.options["sequences"] is not None
        options["visible_until"] = "visible_until" in options
        return f"seed {self.seed}: {self.dtype}, {self.threads} threads, {shapes}, {self.kinds}, {options}"


def numbers(chance, kind, shape, dtype, tensor):
    """[B, heads, length, size] numbers of one kind, as fp64 that the dtype can hold."""
    x = torch.randn(shape, generator=tensor, dtype=torch.float64)
    smallest = torch.finfo(dtype).tiny
    if kind == "sharp":
        x = 4 * x
    elif kind == "huge":  # logits of up to 1e4
        x = 60 * x
    elif kind == "tiny":
        x = 1e-4 * x
    elif kind == "equal":
        x = torch.full_like(x, chance.choice((-1.0, -0.0, 0.3, 2.0)))
    elif kind == "equal rows":
        x = x[:, :, :1].expand(shape).clone()
    elif kind == "zeros":
        x = torch.where(x > 0, 0.0, -0.0) if chance.random() < 0.5 else x.sign() * (x.abs() > 0.5)
    elif kind == "denormal":
        x = x * smallest / chance.choice((1, 64))
    elif kind == "mixed":
        which = torch.randint(0, 5, shape, generator=tensor)
        x = torch.stack([x, 30 * x, 1e-6 * x, smallest * x, torch.where(x > 0, 0.0, -0.0)]).gather(0, which[None])[0]
    return x.to(dtype)


def select_rarely(chance, tensor, query, key):
    """Change the selecting head's numbers so that most logits are negative: by chance, those of a whole tile never are.

    Some queries select all keys before them, and some keys are selected by all the others.
    """
    for x, sign in ((query, -1), (key, 1)):
        rare = torch.rand(x.shape[:2], generator=tensor) < chance.choice((0.0, 0.005, 0.05))
        x.copy_(sign * torch.where(rare, -1, 1)[..., None] * x.abs())


def laid_out(chance, x):
    """The same numbers in another layout; or, for one layout, the numbers of the first for all."""
    kind = chance.choice(LAYOUTS)
    if kind == "transposed":  # as a model has them: [B, length, heads, size]
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "strided":
        return torch.stack([x, x], -1).flatten(-2)[..., ::2]
    if kind == "wide rows":
        return torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[3]]
    if kind == "one for all":
        axis = chance.randrange(3)
        return x.narrow(axis, 0, 1).expand(x.shape)
    return x


def some_sequences(chance, tensor, batch, keys):
    kind = chance.choice(("none", "none", "padded", "packed", "scattered", "holes"))
    if kind == "none":
        return None
    index = torch.arange(keys).expand(batch, keys)
    cuts = torch.randint(0, keys + 1, (batch, 3), generator=tensor).sort(-1).values
    ids = sum(index >= cuts[:, i : i + 1] for i in range(3))
    if kind == "packed":
        return Sequences.from_documents(ids)
    if kind == "padded":
        return Sequences.from_mask((index >= cuts[:, :1]) & (index < cuts[:, 2:]))
    if kind == "scattered":
        return Sequences.from_documents(ids, torch.rand(batch, keys, generator=tensor) < 0.6)
    return Sequences.from_mask((index < cuts[:, :1]) | (index >= cuts[:, 2:]))  # one document, padding inside


def some_divisor(chance, number):
    """How many masks the heads can be shared out among."""
    return chance.choice([n for n in range(1, number + 1) if number % n == 0])


def some_heads(chance, heads):
    """The selecting heads: mostly one, or one for each of some groups, in the group or anywhere."""
    masks = some_divisor(chance, heads) if chance.random() < 0.35 else 1
    if masks == 1 or chance.random() < 0.5:
        return tuple(chance.randrange(heads) for _ in range(masks))
    return tuple(group * (heads // masks) + chance.randrange(heads // masks) for group in range(masks))


def some_bias(chance, tensor, shape, dtype):
    """Numbers for some of the dimensions, one for all of the others; some of them may hide."""
    shape = [n if chance.random() < 0.6 else 1 for n in shape]
    found = chance.choice((0.1, 1.0, 20.0)) * torch.randn(shape, generator=tensor, dtype=torch.float64)
    found = found.to(torch.promote_types(dtype, torch.float32))
    return found.masked_fill(torch.rand(shape, generator=tensor) < chance.choice((0.0, 0.0, 0.2)), -torch.inf)


def draw(seed):
    """The example of that seed."""
    chance, tensor = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, threads = chance.choice(DTYPES), chance.choice((1, 1, 2, 3))
    N = chance.randint(*chance.choices(((1, 40), (41, 130), (131, 320)), (4, 3, 1))[0])
    B, G, shared = (chance.randint(1, most) for most in ((3, 3, 3) if N <= 130 else (2, 1, 2)))
    if N > 96 and chance.random() < 0.3:  # so many blocks of queries that several go together
        B, G, shared = chance.randint(8, 17), chance.randint(1, 2), chance.randint(1, 2)
    D, Dv = (chance.choice((chance.randint(1, 40), 8, 16, 32, 64, chance.randint(41, 130))) for _ in range(2))
    continues = chance.random() < 0.2
    past = chance.choice((0, 1, chance.randint(1, 130))) if continues else 0
    M = N + past

    kinds = tuple(chance.choice(VALUES) for _ in range(4))
    shapes = {"query": (G * shared, N, D), "key": (G, M, D), "value": (G, M, Dv)}
    H, heads, masks = G * shared, some_heads(chance, G * shared), 0
    if chance.random() < 0.3:  # a form selects
        heads, masks, size = (0,), some_divisor(chance, H), chance.choice((1, 5, 16, chance.randint(2, 70)))
        shapes |= {"selection_query": (masks, N, size), "selection_key": (masks, M, size)}
    drawn = {
        name: numbers(chance, kind, (B, *shape), dtype, tensor)
        for (name, shape), kind in zip(shapes.items(), (*kinds[:3], *kinds[:2]), strict=False)
    }
    if chance.random() < 0.3 and masks:
        for mask in range(masks):
            select_rarely(chance, tensor, drawn["selection_query"][:, mask], drawn["selection_key"][:, mask])
    elif chance.random() < 0.3:
        select_rarely(chance, tensor, drawn["query"][:, heads[0]], drawn["key"][:, heads[0] // shared])
    masks = masks or len(heads)
    inputs = {name: laid_out(chance, x) for name, x in drawn.items()}
    if chance.random() < 0.25:
        inputs["attn_mask"] = some_bias(chance, tensor, (B, H, N, M), dtype)
    if past:
        initial_f = torch.rand(B, masks, past, generator=tensor, dtype=torch.float64) * chance.choice((0.0, 1.0, 50.0))
        inputs["initial_f"] = initial_f.to(torch.promote_types(dtype, torch.float32))
    on = (True, True, True, False)
    small = 2.0**-24 if dtype != torch.float64 else 2.0**-60
    options = {
        "enable_gqa": True,
        "selection": Selection(heads if len(heads) > 1 else heads[0], *(chance.choice(on) for _ in range(4))),
        "sequences": some_sequences(chance, tensor, B, M),
        "scale": chance.choice((None, None, 1.0, -0.3)),
        "softcap": chance.choice((None, None, None, 2.0, 50.0)),
        "window": chance.choice((None, None, chance.randint(1, M + 1))),
        "strength": chance.choice((1.0, 1.0, 0.25, 0.0)),
        "tau": chance.choice((1.0, 1.0, 0.3, 20.0)),
        "tolerance": chance.choice((small, small, 0.0)),
        "wanted": (*["memory"] * (chance.random() < 0.7), *["final_f"] * continues),
    }
    if chance.random() < 0.3:
        shape = (B, M) if chance.random() < 0.6 else (B, G, M)
        away = torch.randint(-1, M + M // 2 + 2, shape, generator=tensor)
        keep = chance.choice((0.0, 0.8))
        options["visible_until"] = torch.where(torch.rand(shape, generator=tensor) < keep, M, away)
    example = Example(seed, dtype, threads, inputs, options, {}, kinds)
    if not continues:
        example.upstream["output"] = laid_out(chance, numbers(chance, kinds[3], (B, G * shared, N, Dv), dtype, tensor))
        if "memory" in options["wanted"]:
            example.upstream["memory"] = torch.randn(B, masks, N, generator=tensor, dtype=torch.float64)
    return example


def run(inputs, options, upstream, backend):
    """By name: the results and the gradients, in fp64."""
    leaves = {name: x.detach().requires_grad_(bool(upstream)) for name, x in inputs.items()}
    got = {name: x for name, x in attend(**leaves, **options, backend=backend)._asdict().items() if x is not None}
    found = {name: x.detach().double() for name, x in got.items()}
    if upstream:
        names = [name for name in upstream if name in got]
        given = [upstream[name].to(got[name].dtype) for name in names]
        gradients = torch.autograd.grad([got[name] for name in names], list(leaves.values()), given)
        found |= {f"d {name}": g.double() for name, g in zip(leaves, gradients, strict=True)}
    return found


def exact(dtype):
    """What is known of the type that is computed in."""
    return torch.finfo(torch.promote_types(dtype, torch.float32))


def selecting(r):
    """Where a row may select: the logits, and the sums of their terms' sizes (else 0), [B, S, N, M]."""
    whole = tile.whole(r)
    seen = tile.visible(r, whole)
    allowed = tile.may_select(r, whole, seen)
    x = tile.selecting_logits(r, whole)
    if r.selection_query is None:
        shared = r.query.shape[1] // r.key.shape[1]
        heads = list(r.rules.selection.heads)
        q, k, scale = r.query[:, heads], r.key[:, [head // shared for head in heads]], abs(r.scale)
    else:
        q, k, scale = r.selection_query, r.selection_key, tile.separate_scale(r)
    size = scale * (q.abs() @ k.abs().mT)
    if r.bias is not None and r.selection_query is None:
        bias = r.bias if r.bias.shape[1] == 1 else r.bias[:, heads]
        size = size + bias.abs().nan_to_num(0.0, 0.0, 0.0)
    return x.masked_fill(~allowed, 0.0), size * allowed


def finite_bias(r):
    """The bias, 0 where it hides."""
    return None if r.bias is None else r.bias.double().masked_fill(r.bias == -torch.inf, 0.0)


def each_head(F, r):
    """[B, S, N, M] of masks as [B, H, N, M] of the heads that follow them."""
    return F.repeat_interleave(r.query.shape[1] // F.shape[1], 1)


def kinks(example, r, F):
    """Whether a logit that selects is too near 0 to tell its sign, and whether some F is too near tau, both in fp64."""
    eps, smallest = exact(example.dtype).eps, exact(example.dtype).smallest_normal
    logits, size = selecting(r)
    features = (r.query if r.selection_query is None else r.selection_query).shape[-1]
    near = (size > 0) & (logits.abs() <= 64 * eps * (size + smallest * features))
    slack = 1e3 * eps * (r.rules.tau + F.abs() + size.amax((2, 3), keepdim=True))
    return r.rules.selection.relu and bool(near.any()), bool(((F - r.rules.tau).abs() <= slack).any())


def rounding_of_memory(example, r, F):
    """What rounding may do to M: of its sum over the keys, one after the other, and of F where it is below tau."""
    eps, keys = exact(example.dtype).eps, r.key.shape[2]
    of_f = (4 * eps * selecting(r)[1].cumsum(-2)).clamp(max=r.rules.tau) / r.rules.tau
    return eps * keys**1.5 + (of_f * (F < r.rules.tau)).sum(-1).max()


def rounding_of_f(example, F):
    """What rounding may do to F, a sum over rows."""
    return exact(example.dtype).eps * F.shape[-2] ** 0.5 * F.abs()


def rounding_of_weights(example, r, F, weights):
    """What rounding may do to each weight: eps of the exponents, which may be large, and as much of the log-sum-exp."""
    key = r.key.repeat_interleave(r.query.shape[1] // r.key.shape[1], 1)
    logits = r.scale * (r.query @ key.mT)
    logits = logits if r.rules.softcap is None else r.rules.softcap * (logits / r.rules.softcap).tanh()
    logits = logits if r.bias is None else logits + finite_bias(r)
    F = each_head(F, r)
    most = weights.argmax(-1, keepdim=True)
    top = (logits - F).gather(-1, most).abs()
    of_f = rounding_of_f(example, F)
    return (4 * exact(example.dtype).eps * (1 + top) + of_f + of_f.gather(-1, most)) * weights


def rounding_of_output(example, r, F, weights):
    """What rounding may do to the output: by the weights, and by the sum over the keys itself."""
    value = r.value.repeat_interleave(r.query.shape[1] // r.value.shape[1], 1)
    summed = exact(example.dtype).eps * r.key.shape[2] ** 0.5 * weights
    return ((rounding_of_weights(example, r, F, weights) + summed) @ value.abs()).max()


def rounding(example, r, F, weights):
    """What rounding may do to each gradient, where weights are rebuilt from a log-sum-exp and dA is P (dP - dO O).

    dP and dO O are sums in different orders, and O was rounded to the inputs' precision: what should cancel leaves an
    error of that size. So does dS, a sum over later rows, and where a soft cap is reached its slope of almost 0.
    """
    eps = exact(example.dtype).eps
    shared, scale = r.query.shape[1] // r.key.shape[1], abs(r.scale)
    key, value = (x.repeat_interleave(shared, 1) for x in (r.key, r.value))
    off = rounding_of_weights(example, r, F, weights)
    d_output = example.upstream["output"].double().abs()
    terms = d_output @ value.abs().mT
    d_logits = off * terms + (off + torch.finfo(example.dtype).eps * weights) * (weights * terms).sum(-1, keepdim=True)

    def by_mask(x):
        return x.unflatten(1, (r.masks, -1)).sum(2)

    d_f = by_mask(weights * (terms + (weights * terms).sum(-1, keepdim=True)))
    if "memory" in example.upstream:
        d_f = d_f + example.upstream["memory"][..., None].abs() / r.rules.tau
    later = (by_mask(d_logits) + 4 * eps * d_f).flip(-2).cumsum(-2).flip(-2)
    of_form = {}
    if r.selection_query is None:
        d_logits = d_logits.index_add(1, torch.tensor(r.rules.selection.heads), later)
    else:
        sq, sk, by = r.selection_query.abs(), r.selection_key.abs(), r.selection_query.shape[-1] ** -0.5
        of_form = {"d selection_query": by * (later @ sk).max(), "d selection_key": by * (later.mT @ sq).max()}
    if r.bias is not None:
        of_form["d attn_mask"] = d_logits.sum_to_size(r.bias.shape).max()

    def of_keys(x):  # the heads that share one add up
        return x.unflatten(1, (-1, shared)).sum(2)

    summed = (shared * r.query.shape[2]) ** 0.5 * eps * weights  # by the sums over rows and heads themselves
    return {
        "d query": scale * (d_logits @ key.abs()).max(),
        "d key": scale * of_keys(d_logits.mT @ r.query.abs()).max(),
        "d value": of_keys((off + summed).mT @ d_output).max(),
        **of_form,
    }


def moved(example, chance):
    """The inputs and upstream gradients, each number moved by a rounding error or so, in fp64."""
    eps = exact(example.dtype).eps
    own = torch.finfo(example.dtype).eps  # what is stored in the dtype: values, output, its gradient

    def move(name, x):
        amount = own if name in ("value", "output") else 4 * eps
        return x.double() * (1 + amount * torch.randn(x.shape, generator=chance, dtype=torch.float64))

    return ({name: move(name, x) for name, x in given.items()} for given in (example.inputs, example.upstream))


def floors(example, r, F, weights):
    """By name of a result, what rounding may do to its worst element."""
    return (rounding(example, r, F, weights) if example.upstream else {}) | {
        "memory": rounding_of_memory(example, r, F),
        "final_f": rounding_of_f(example, F).max(),
        "output": rounding_of_output(example, r, F, weights),
    }


def compare(example, attempt, floors, moved):
    """Hold what `attempt()` gives against the reference; a line for each result that is too far off."""
    in_fp64 = {name: x.double() for name, x in example.inputs.items()}
    case = Case(in_fp64, example.options, None, 0)
    whole = case.result("reference", wanted=("f", "weights"))
    F, request = whole.f, case.request()
    near_relu, near_tau = kinks(example, request, F)
    if near_tau:
        example.upstream.pop("memory", None)
    upstream = {name: x.double() for name, x in example.upstream.items()}
    floor = floors(example, request, F, whole.weights)
    truth = run(in_fp64, example.options, upstream, "reference")
    plain = run(example.inputs, example.options, example.upstream, "reference")
    got = attempt()
    inputs, gradients = moved(example, torch.Generator().manual_seed(example.seed))
    near = run(inputs, example.options, gradients, "reference")
    lines = []
    for name, t in truth.items():
        if near_relu and name.startswith("d ") and name not in ("d value", "d initial_f"):
            continue
        error, allowed = (got[name] - t).abs().nan_to_num(torch.inf).max(), 2 * (plain[name] - t).abs().max()
        largest, noise = t.abs().max(), (near[name] - t).abs().max()
        # Weights below 2^-125 are 0, and what underflows in one order need not in another.
        allowed = allowed + 4 * noise + 2 * torch.finfo(example.dtype).eps * largest + floor.get(name, 0.0)
        allowed = allowed + 1e4 * exact(example.dtype).smallest_normal
        allowed = allowed + (torch.finfo(example.dtype).smallest_normal if example.dtype == torch.float16 else 0.0)
        if not (error <= allowed and got[name].shape == t.shape):
            lines.append(f"{name} is off by {error:.3g}, allowed {allowed:.3g} (largest {largest:.3g}); {example}")
    return lines


def check(seed):
    """Run one example; a line for each result that is too far off."""
    example, before = draw(seed), torch.get_num_threads()

    def attempt():
        torch.set_num_threads(example.threads)
        try:
            return run(example.inputs, example.options, example.upstream, "cpu")
        finally:
            torch.set_num_threads(before)

    return compare(example, attempt, floors, moved)


def run_all(start, count, check=check):
    """Run `count` examples, print what fails, and return how many failed."""
    torch.use_deterministic_algorithms(True)  # uninitialised memory is NaN
    failed = 0
    for done, seed in enumerate(range(start, start + count), 1):
        lines = check(seed)
        failed += bool(lines)
        for line in lines:
            print(line, flush=True)
        if done % 50 == 0:
            print(f"{done} of {count} examples, {failed} failed", flush=True)
    return failed


def main(check=check, count=300):
    parser = argparse.ArgumentParser(description="Random calls of a backend, held against the reference.")
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--start", type=int, default=0)
    arguments = parser.parse_args()
    failed = run_all(arguments.start, arguments.count, check)
    print(f"{arguments.count} examples from seed {arguments.start}, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
