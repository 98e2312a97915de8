"""Named situations for the kernels, each a call of the operator, and the error-ratio rule by which they are held."""

from unittest import mock

import torch

from selattn.ops import Selection, Sequences
from selattn.ops.backends.triton import configs
from selattn.ops.backends.triton.configs import Config, Tile
from tests.ops.cases import attend

N, H, G = 37, 4, 2
SMALL = Config(16, *(Tile(16, 4, 1, 2) for _ in range(6)))  # so that short sequences have several tiles
UNTIL = torch.arange(N)[None] + torch.tensor([[9], [25]])
SITUATIONS = {
    "default": {},
    "nothing left out": {"tolerance": 0.0},
    "sharp": {"gain": 6.0, "n": 65},
    "one head for each key": {"groups": H},
    "one key for all heads": {"groups": 1},
    "another head": {"selection": Selection(3)},
    "padded": {"sequences": Sequences.from_mask(torch.arange(N) >= torch.tensor([[20], [0]]))},
    "packed": {"sequences": Sequences.from_documents(torch.arange(N)[None] // torch.tensor([[12], [30]]))},
    "padding in between": {"sequences": Sequences.from_mask((torch.arange(N) + torch.tensor([[0], [1]])) % 3 > 0)},
    "nothing but padding": {"sequences": Sequences.from_mask(torch.zeros(2, N))},
    "window": {"window": 7},
    "soft cap": {"softcap": 2.0},
    "evicted": {"visible_until": UNTIL},
    "evicted by each head": {"visible_until": torch.stack([UNTIL, UNTIL.flip(-1)], 1)},
    "bias": {"bias": (2, H, N, N)},
    "bias of keys": {"bias": (1, 1, 1, N), "softcap": 3.0},
    "mask": {"attn_mask": torch.arange(N * N).view(1, 1, N, N) % 3 > 0},
    "strength": {"strength": torch.tensor(0.4)},
    "no shift": {"selection": Selection(shift=False)},
    "no relu": {"selection": Selection(relu=False)},
    "nothing protected": {"selection": Selection(protect_first=False, protect_self=False)},
    "two masks": {"selection": Selection((3, 1))},
    "a mask for each head": {"selection": Selection((3, 1, 1, 0)), "gain": 6.0},
    "separate form": {"separate": 2},
    "initial F": {"past": 21, "wanted": ("memory", "final_f")},
    "initial F, window": {"past": 3, "window": 6, "wanted": ("memory", "final_f")},
    "initial F, not wanted": {"past": 40, "gain": 6.0},
    "odd sizes": {"size": 5, "value_size": 19},
}


def situation(name, dtype=torch.float32):
    """Inputs in fp64 (of numbers that the dtype has) and options."""
    o = dict(SITUATIONS[name])
    gain, groups, n = o.pop("gain", 2.0), o.pop("groups", G), o.pop("n", N)
    size, value_size = o.pop("size", 16), o.pop("value_size", 16)
    past, separate, bias = o.pop("past", 0), o.pop("separate", 0), o.pop("bias", None)
    chance = torch.Generator().manual_seed(len(name))

    def normal(*shape):
        return torch.randn(shape, generator=chance).to(dtype).double()

    x = {"query": gain * normal(2, H, n, size), "key": normal(2, groups, n + past, size)}
    x["value"] = normal(2, groups, n + past, value_size)
    x["query"] = x["query"].to(dtype).double()
    if separate:
        x |= {"selection_query": normal(2, separate, n, 5), "selection_key": normal(2, separate, n + past, 5)}
    if past:
        x["initial_f"] = normal(2, 1, past).abs()
    if bias:
        x["attn_mask"] = normal(*bias)
    return x, {"enable_gqa": True, "wanted": ("memory",), **o}


def results(x, options, backend, upstream, dtype):
    """By name: what comes back, and the gradient of every input, in fp64."""
    exact = torch.promote_types(dtype, torch.float32)
    leaves = {
        name: t.to(exact if name in ("initial_f", "attn_mask") else dtype).requires_grad_() for name, t in x.items()
    }
    got = attend(**leaves, **options, backend=backend)._asdict()
    got = {name: t for name, t in got.items() if t is not None and t.requires_grad}
    for name, t in got.items():
        chance = torch.Generator().manual_seed(len(name))
        upstream.setdefault(name, torch.randn(t.shape, generator=chance).to(dtype).double())
    given = [upstream[name].to(t.dtype) for name, t in got.items()]
    gradients = torch.autograd.grad(list(got.values()), list(leaves.values()), given, materialize_grads=True)
    found = {name: t.detach().double() for name, t in got.items()}
    return found | {f"d {name}": t.double() for name, t in zip(leaves, gradients, strict=True)}


def compare(name, dtype=torch.float32, config=SMALL, factor=2.0, **more):
    """Errors against fp64: at most `factor` times those of the reference in the same precision, and a little."""
    x, options = situation(name, dtype)
    upstream, options = {}, options | more
    truth = results(x, options, "reference", upstream, torch.float64)
    plain = results(x, options, "reference", upstream, dtype)
    with mock.patch.object(configs, "INTERPRETED", config):
        got = results(x, options, "triton", upstream, dtype)
    assert got.keys() == truth.keys()
    little = 8 * torch.finfo(dtype).eps
    for key, t in truth.items():
        assert got[key].shape == t.shape
        error, allowed = (got[key] - t).norm(), factor * (plain[key] - t).norm() + little * t.norm()
        assert error <= allowed, f"{key}: {error:.3g}, allowed {allowed:.3g}"
