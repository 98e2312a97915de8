"""How much Python a call runs: `python -m tools.journey` counts the calls and files of selattn alone.

Counted by `sys.setprofile`, so a number is the same on every machine:

    operator          `selective_attention(q, k, v)` on `cpu`, and the same with its backward pass
    decoded token     one more token of `generate()` under budgets: a model of the zoo, and a random stock Llama
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import selattn

ROOT = Path(__file__).parents[1]
PACKAGE = str(Path(selattn.__file__).parent)


def functions_called(call: Callable[[], object]) -> Counter[tuple[str, str]]:
    """How often each of our functions ran, by (file, name); comprehensions and generators count as Python counts."""
    call()  # imports, and what is remembered
    found: Counter[tuple[str, str]] = Counter()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found[frame.f_code.co_filename.removeprefix(PACKAGE + "/"), frame.f_code.co_name] += 1

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def operator(backward: bool) -> Counter[tuple[str, str]]:
    """`selective_attention` on a small input."""
    inputs = [torch.randn(1, 2, 4, 8).requires_grad_(backward) for _ in range(3)]
    if not backward:
        return functions_called(lambda: selattn.selective_attention(*inputs))
    return functions_called(lambda: selattn.selective_attention(*inputs).sum().backward())


def decoded_token(model: Any, **pruned: Any) -> Counter[tuple[str, str]]:
    """One token: what `generate()` calls for 41 new ones and not for 40."""
    ids = torch.arange(4, 68)[None] % model.config.vocab_size

    def generate(count: int) -> Counter[tuple[str, str]]:
        length = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        return functions_called(lambda: model.generate(ids, **length, **pruned))

    return generate(41) - generate(40)


def zoo_model() -> Any:
    """zoo:selective."""
    return selattn.SelectiveForCausalLM.from_pretrained(ROOT / "zoo" / "selective", dtype=torch.float32).eval()


def stock_llama() -> Any:
    """Three layers, random, made selective."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    config.eos_token_id = None
    return selattn.make_selective(LlamaForCausalLM(config).eval())


JOURNEYS: dict[str, Callable[[], Counter[tuple[str, str]]]] = {
    "operator, forward": lambda: operator(backward=False),
    "operator, with backward": lambda: operator(backward=True),
    "decoded token, zoo:selective": lambda: decoded_token(zoo_model(), cache_budgets=[8, 24, 50]),
    "decoded token, stock Llama": lambda: decoded_token(stock_llama(), cache_budgets=[8, 24, 50]),
}


def main() -> None:
    """Print a line for each journey; with --functions, the functions that it calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", action="store_true", help="also every function and how often it is called")
    arguments = parser.parse_args()
    for name, journey in JOURNEYS.items():
        found = journey()
        print(f"{name:32} {found.total():5} calls {len({file for file, _ in found}):4} files")
        if arguments.functions:
            for (file, function), count in sorted(found.items()):
                print(f"    {count:4}  {file}  {function}")


if __name__ == "__main__":
    main()
