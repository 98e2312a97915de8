"""Random calls of the Triton backend, held against the reference, in the interpreter.

    TRITON_INTERPRET=1 python -m tests.ops.triton.fuzz --count 1000     # prints what fails, and with which seed

The rule is that of tests/ops/fuzz.py: the truth is the reference in fp64, and the error in the worst element may be
twice that of the reference in the same precision, apart from what rounding may do, which half precision makes larger.
"""

import random
from unittest import mock

import torch

from selattn.ops import Selection
from selattn.ops.backends import tile
from selattn.ops.backends.triton import configs
from selattn.ops.backends.triton.configs import Config, Tile
from tests.ops.fuzz import (
    Example,
    compare,
    laid_out,
    main,
    numbers,
    run,
    select_rarely,
    selecting,
    some_sequences,
)

DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16)
VALUES = ("normal", "normal", "normal", "sharp", "tiny", "equal", "equal rows", "zeros", "mixed")
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 50, 64, 65)
DIFFERENTIABLE = ("query", "key", "value", "selection_query", "selection_key", "attn_mask", "initial_f")


def tiles(chance):
    """A configuration: blocks of rows and keys of different sizes."""
    one = [Tile(chance.choice((16, 32)), 4, 1, chance.choice((1, 2, 3))) for _ in range(6)]
    return Config(chance.choice((16, 32)), *one)


def draw(seed):
    """The example of that seed."""
    chance, tensor = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, N = chance.choice(DTYPES), chance.choice(LENGTHS)
    B, G, shared = (chance.randint(1, most) for most in (2, 2, 3))
    H = G * shared
    D, Dv, Ds = (chance.choice((chance.randint(1, 20), 8, 16, 17)) for _ in range(3))
    past = chance.choice((0, 0, 0, 1, chance.randint(1, 40)))
    M = N + past
    kinds = tuple(chance.choice(VALUES) for _ in range(4))
    shapes = {"query": (H, N, D), "key": (G, M, D), "value": (G, M, Dv)}
    drawn = {
        name: numbers(chance, kind, (B, *shape), dtype, tensor)
        for (name, shape), kind in zip(shapes.items(), kinds, strict=False)
    }
    masks = chance.choice([1, 1, 1, *(n for n in range(1, H + 1) if H % n == 0)])
    separate = chance.random() < 0.2
    heads = 0 if separate else tuple(chance.randrange(H) for _ in range(masks))
    if not separate and chance.random() < 0.3:
        select_rarely(chance, tensor, drawn["query"][:, heads[0]], drawn["key"][:, heads[0] // shared])
    inputs = {name: laid_out(chance, x) for name, x in drawn.items()}
    if separate:
        inputs["selection_query"] = numbers(chance, "normal", (B, masks, N, Ds), dtype, tensor)
        inputs["selection_key"] = numbers(chance, "normal", (B, masks, M, Ds), dtype, tensor)
    if past:
        inputs["initial_f"] = torch.rand(B, masks, past, generator=tensor) * chance.choice((0.0, 1.0, 50.0))
    on = (True, True, True, False)
    options = {
        "enable_gqa": True,
        "selection": Selection(heads, *(chance.choice(on) for _ in range(4))),
        "sequences": some_sequences(chance, tensor, B, M),
        "scale": chance.choice((None, None, 1.0, -0.3)),
        "softcap": chance.choice((None, None, None, 2.0, 50.0)),
        "window": chance.choice((None, None, chance.randint(1, M + 1))),
        "strength": chance.choice((1.0, 1.0, 0.25, 0.0)),
        "tau": chance.choice((1.0, 1.0, 0.3, 20.0)),
        "tolerance": chance.choice((2.0**-24, 2.0**-24, 0.0)),
        "wanted": (*["memory"] * (chance.random() < 0.7), *["final_f"] * (chance.random() < 0.25)),
    }
    if chance.random() < 0.3:
        shape = (B, M) if chance.random() < 0.7 else (B, G, M)
        away = torch.randint(-1, M + M // 2 + 2, shape, generator=tensor)
        keep = chance.choice((0.0, 0.8))
        options["visible_until"] = torch.where(torch.rand(shape, generator=tensor) < keep, M, away)
    kind = chance.choice((None,) * 6 + ("bias", "mask"))
    if kind:
        full = [n if chance.random() < 0.5 else 1 for n in (B, H, N, M)]
        if kind == "bias":
            holes = torch.rand(full, generator=tensor) < chance.choice((0.0, 0.2))
            bias = torch.randn(full, generator=tensor).to(torch.promote_types(dtype, torch.float32))
            inputs["attn_mask"] = bias.masked_fill(holes, -torch.inf)
        else:
            options["attn_mask"] = torch.rand(full, generator=tensor) < 0.7
            if full[1:3] == [1, 1]:  # a padding mask: it is in the way of the sequences
                options["sequences"] = None
    example = Example(seed, dtype, 1, inputs, options, {}, kinds)
    if chance.random() < 0.8:
        example.upstream["output"] = laid_out(chance, numbers(chance, kinds[3], (B, H, N, Dv), dtype, tensor))
        if "memory" in options["wanted"]:
            example.upstream["memory"] = torch.randn(B, masks, N, generator=tensor, dtype=torch.float64)
        if "final_f" in options["wanted"]:
            example.upstream["final_f"] = torch.randn(B, masks, M, generator=tensor, dtype=torch.float64)
    return example, tiles(chance)


def by_heads(x, heads):
    """[B, S, ...] as [B, H, ...]: what each head follows."""
    return x.repeat_interleave(heads // x.shape[1], 1)


class Rounding:
    """What rounding may do to each result of an example."""

    def __init__(self, example, r, F, weights):
        self.example, self.r, self.weights = example, r, weights
        self.eps, self.own = torch.finfo(torch.float32).eps, torch.finfo(example.dtype).eps
        heads = r.query.shape[1]
        logits, self.size = selecting(r)
        self.selects = (logits > 0) if r.rules.selection.relu else (self.size > 0)
        self.of_f = self.eps * (F.shape[-2] ** 0.5 * F.abs() + 4 * self.size.cumsum(-2))
        self.f = F
        logits = tile.head_logits(r, tile.whole(r)).nan_to_num(0.0, 0.0, 0.0)
        most = weights.argmax(-1, keepdim=True)
        top = (logits - by_heads(F, heads)).gather(-1, most).abs()
        f = by_heads(self.of_f, heads)
        self.off = (4 * self.eps * (1 + top) + f + f.gather(-1, most)) * weights

    def floors(self):
        """By name of a result, what its worst element may be off by.

        In fp32 errors are taken to add up. Half precision rounds each weight and each gradient of a logit on its own
        before a product: such errors add up as their squares do, or a gradient of zeros would pass.
        """
        r, keys, shared = self.r, self.r.key.shape[2], self.r.query.shape[1] // self.r.key.shape[1]
        value = r.value.repeat_interleave(shared, 1)
        half = self.own if self.example.dtype != torch.float32 else 0.0
        summed = self.off + self.eps * keys**0.5 * self.weights
        near = (self.of_f.clamp(max=r.rules.tau) / r.rules.tau * (self.f < r.rules.tau)).sum(-1).max()
        found = {
            "output": (summed @ value.abs() + 2 * half * together(self.weights, value)).max(),
            "memory": self.eps * keys**1.5 + near,
            "final_f": (self.of_f[..., -1:, :] + 4 * self.eps * self.size.sum(-2, keepdim=True)).max(),
        }
        return found | (self.gradients(value, shared, half) if "output" in self.example.upstream else {})

    def gradients(self, value, shared, half):
        example, r, eps, masks = self.example, self.r, self.eps, self.f.shape[1]
        scale, weights, d_output = abs(r.scale), self.weights, example.upstream["output"].double()

        def of_mask(x):  # the heads that follow a mask add up
            return x.unflatten(1, (masks, -1)).sum(2)

        def of_keys(x):  # and those that share a key
            return x.unflatten(1, (-1, shared)).sum(2)

        # In fp32: of sizes, as all of a sum may be off to one side.
        terms = d_output.abs() @ value.abs().mT
        mean = (weights * terms).sum(-1, keepdim=True)
        d_a = weights * (terms + mean)
        off = self.off * (terms + mean) + 4 * eps * d_a
        d_f = of_mask(d_a)
        # In half precision: of the gradients themselves, which are rounded when they are known; and of the output,
        # which is rounded before its product with its gradient is taken, an error for a whole row.
        output = weights @ value
        products = d_output @ value.mT
        d_logits = weights * (products - (output * d_output).sum(-1, keepdim=True))
        one = 2 * half * (output * d_output).norm(dim=-1, keepdim=True)
        of_row = one * weights
        rounded = 2 * half * d_logits.abs()
        d_forgetting = of_mask(d_logits)
        if "memory" in example.upstream:
            pull = example.upstream["memory"][..., None].double() / r.rules.tau
            d_f, d_forgetting = d_f + pull.abs(), d_forgetting.abs() + pull.abs()
        if "final_f" in example.upstream:
            pull = example.upstream["final_f"][..., None, :].double()
            d_f, d_forgetting = d_f + pull.abs(), d_forgetting.abs() + pull.abs()
        # dS is a sum over later rows; its products are made in TF32 for half precision.
        later = upwards(of_mask(off) + 4 * eps * d_f)
        squares = of_mask(rounded**2 + of_row**2) + (2 * half * d_forgetting) ** 2
        in_half = upwards(squares).sqrt() + 2 * half * upwards(d_forgetting).abs()
        found = {"d initial_f": (later + in_half).max()}
        given = abs(r.rules.strength) * self.selects  # of what does not select, the gradient is 0
        later, in_half = given * later, given * in_half
        summed = self.off + (shared * r.query.shape[2]) ** 0.5 * eps * weights
        of_value = of_keys(summed.mT @ d_output.abs())
        found["d value"] = (of_value + 2 * half * of_keys(together(weights.mT, d_output) ** 2).sqrt()).max()
        if r.selection_query is None:
            rounded = rounded.clone()
            for s, head in enumerate(r.rules.selection.heads):
                off[:, head] += later[:, s]
                rounded[:, head] += in_half[:, s]
        else:
            own = tile.separate_scale(r)
            found["d selection_query"] = own * product(later, in_half, r.selection_key).max()
            found["d selection_key"] = own * product(later.mT, in_half.mT, r.selection_query).max()
        key = r.key.repeat_interleave(shared, 1)
        found["d query"] = scale * (product(off, rounded, key) + one * (weights @ key).abs()).max()
        in_columns = together(of_row.mT, r.query)
        found["d key"] = scale * of_keys(product(off.mT, rounded.mT, r.query) + in_columns).max()
        if r.bias is not None:
            found["d attn_mask"] = (off + rounded + of_row).sum_to_size(r.bias.shape).max()
        return found


def product(off, rounded, x):
    """The error of a product with x, of errors that add up and of errors that are independent of each other."""
    return off @ x.abs() + together(rounded, x)


def together(rounded, x):
    """The error of a product with x, of errors that are independent of each other."""
    return (rounded**2 @ x**2).sqrt()


def upwards(x):
    """The sum over this row and all later ones."""
    return x.flip(-2).cumsum(-2).flip(-2)


def moved(example, chance):
    """The inputs and upstream gradients, each number moved by a few rounding errors of fp32, in fp64."""
    amount = 4 * torch.finfo(torch.float32).eps

    def move(x):
        return x.double() * (1 + amount * torch.randn(x.shape, generator=chance, dtype=torch.float64))

    return ({name: move(x) for name, x in given.items()} for given in (example.inputs, example.upstream))


def check(seed, backend="triton"):
    """Run one example; a line for each result that is too far off."""
    example, config = draw(seed)

    def attempt():
        with mock.patch.object(configs, "INTERPRETED", config):
            return run(example.inputs, example.options, example.upstream, backend)

    return compare(example, attempt, lambda *given: Rounding(*given).floors(), moved)


if __name__ == "__main__":
    from tests.ops.triton.interpreter import quicken

    quicken()
    main(check, 100)
