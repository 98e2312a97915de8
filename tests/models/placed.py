"""Two devices on a machine that has none: tensors on the CPU that say they are elsewhere, and do not mix.

`python -m tests.models.placed` spreads the layers of models over them and compares with the same models in one place.
It is a process of its own because it gives torch a device for good. Nothing is differentiated: torch's autograd has no
threads for devices that are not there.
"""

import torch
from accelerate import dispatch_model
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.models.tiny import VARIANTS, padded, tiny, token_ids

NAME = "placed"
MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Placed(torch.Tensor):
    """A tensor of the CPU that says that it is on another device."""

    @staticmethod
    def __new__(cls, value, device):
        layout = {"strides": value.stride(), "storage_offset": value.storage_offset(), "dtype": value.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, value.shape, device=device, **layout)

    def __init__(self, value, device):
        self.value = value

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Devices(TorchDispatchMode):
    """Tensors can be made on the devices, too."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """Compute on the CPU, and place the result; an error, as on real devices, where the arguments are on several."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    placed = [x for x in tensors if isinstance(x, Placed)]
    devices = {x.device for x in tensors if isinstance(x, Placed) or x.ndim}  # numbers of the CPU go with any device
    if len(devices) > 1 and func not in MOVES:
        raise RuntimeError(f"{func}: tensors on {devices}")
    out = func(*tree_map(bare, args), **tree_map(bare, kwargs))
    device = args[0].device if func is MOVES[1] else kwargs.get("device") or (placed[0].device if placed else None)
    if device is None or torch.device(device).type == "cpu":
        return out
    known = {id(x.value): x for x in placed}  # what works in place gives back its argument

    def place(x):
        return known[id(x)] if id(x) in known else Placed(x, device) if isinstance(x, torch.Tensor) else x

    return tree_map(place, out)


def bare(x):
    return x.value if isinstance(x, Placed) else torch.device("cpu") if isinstance(x, torch.device) else x


def register():
    """Give torch the device, and what torch needs of it below the reach of Python: tensors, and to fill them."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")

    def strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
        return Placed(torch.empty_strided(size, stride, dtype=dtype), device)

    def contiguous(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return Placed(torch.empty(size, dtype=dtype), device)

    def copy(source, target, non_blocking=False):
        bare(target).copy_(bare(source))
        return target

    library.impl("empty_strided", strided, "PrivateUse1")
    library.impl("empty.memory_format", contiguous, "PrivateUse1")
    library.impl("_copy_from", copy, "PrivateUse1")
    return library


def spread(model, first=0):
    """The model with its layers in turn on the two devices; what is not a layer is on either of them."""
    names = [name for name, _ in model.named_children() if name != "model"]
    names += [f"model.{name}" for name, _ in model.model.named_children() if name != "layers"]
    places = {name: f"{NAME}:{number % 2}" for number, name in enumerate(names)}
    if model.config.tie_word_embeddings:
        places["lm_head"] = places["model.embed_tokens"]
    layers = {f"model.layers.{layer}": f"{NAME}:{(layer + first) % 2}" for layer in range(len(model.model.layers))}
    return dispatch_model(model, {**places, **layers})


def compare(make, call):
    """What a call gives in one place, and spread over two devices."""
    wanted = call(make())
    for first in (0, 1):
        with Devices():
            found = call(spread(make(), first))
            assert found.keys() == wanted.keys()
            for name, value in found.items():
                torch.testing.assert_close(value.to("cpu"), wanted[name], rtol=0, atol=0, equal_nan=True)


@torch.no_grad()
def main():
    library = register()
    with Devices():
        a, b = torch.ones(2, device=f"{NAME}:0"), torch.ones(2, device=f"{NAME}:1")
        try:
            a + b
        except RuntimeError:
            pass
        else:
            raise AssertionError("the devices mix: nothing would be tested")
    ids, mask = padded([token_ids(9, seed=0), token_ids(4, seed=1)], "left")
    settings = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 5, "pad_token_id": 0}
    calls = {
        "logits": lambda m: {"logits": m(ids, attention_mask=mask, use_cache=False).logits},
        "loss": lambda m: {
            name: value
            for name, value in m(
                ids, attention_mask=mask, labels=ids, num_items_in_batch=torch.tensor(9), output_f=True
            ).items()
            if isinstance(value, torch.Tensor)
        },
        "generated": lambda m: {"ids": m.generate(ids, **settings)},
        "beams, pruned": lambda m: {"ids": m.generate(ids, num_beams=2, cache_budgets=4, **settings)},
        "pruned": lambda m: {"logits": m(ids, attention_mask=mask, use_cache=False, cache_budgets=4).logits},
    }
    for variant in ("paper", "all kinds", "separate rotary", "gpt2"):
        for call in calls.values():
            compare(lambda: tiny(**VARIANTS[variant], memory_epsilon=0.1, backend="reference"), call)  # noqa: B023

    del library
    print("the same on two devices")


if __name__ == "__main__":
    main()
