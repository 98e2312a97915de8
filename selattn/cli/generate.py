"""`selattn generate`: continue a text with a model, its cache kept within budgets, and say what that cost."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.errors import SelattnError

if TYPE_CHECKING:
    from torch import Tensor

    from selattn.cache import Budgets, SelectiveCache


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register the command."""
    parser = subparsers.add_parser("generate", help="continue a text, with a pruned cache", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a model's folder, a run's folder, or zoo:NAME")
    parser.add_argument("--prompt", help="the text to continue; without it, standard input is read")
    parser.add_argument("--ids", help="the prompt as token ids, for a model without a tokenizer: '1 17 4'")
    parser.add_argument(
        "--budgets", metavar="FILE", help="how many tokens each layer may keep: a JSON file, or one number"
    )
    parser.add_argument("--policy", help="who leaves when a layer is full (default: the model's own, selective)")
    parser.add_argument("--max-new-tokens", type=int, default=100, metavar="N")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0, the default, always takes the likeliest token"
    )
    parser.add_argument("--top-k", type=int, default=50, help="with a temperature: choose among the k likeliest")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """Stream the text to standard output, and what it cost to standard error."""
    if args.max_new_tokens < 1:
        raise SelattnError(f"--max-new-tokens must be at least 1, not {args.max_new_tokens}")
    budgets = read_budgets(args.budgets)

    import torch
    from transformers import TextStreamer, set_seed
    from transformers.utils import logging

    from selattn.models.weights import load_whole
    from selattn.models.zoo import find_model

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = find_model(args.model)
    model = load_whole(folder).eval()
    tokenizer, ids = read_prompt(args, folder, model.config.vocab_size)
    cache = model.model.new_cache(budgets, args.policy)
    limit, wanted = model.config.max_position_embeddings, ids.shape[1] + args.max_new_tokens
    if model.config.positions == "learned" and wanted > limit:
        raise SelattnError(
            f"prompt and new tokens make {wanted}, and the model has {limit} learned positions: "
            f"--max-new-tokens can be {max(limit - ids.shape[1], 0)} here"
        )
    set_seed(args.seed)
    chosen = {"do_sample": True, "temperature": args.temperature, "top_k": args.top_k} if args.temperature > 0 else {}
    began = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            cache_budgets=budgets,
            cache_policy=args.policy,
            max_new_tokens=args.max_new_tokens,
            streamer=None if tokenizer is None else TextStreamer(tokenizer, skip_special_tokens=True),
            **{"do_sample": False, **chosen},
        )
    seconds = time.perf_counter() - began
    if tokenizer is None:
        print(" ".join(str(token) for token in output[0].tolist()))
    sys.stdout.flush()
    print(cost(output.shape[1] - ids.shape[1], seconds, cache), file=sys.stderr)
    return 0


def read_budgets(given: str | None) -> Budgets | None:
    """A number, or a file."""
    if given is None:
        return None
    from selattn.cache import Budgets

    return Budgets(int(given)) if given.isdecimal() else Budgets.load(given)


def read_prompt(args: argparse.Namespace, folder: Path, vocabulary: int) -> tuple[Any, Tensor]:
    """The model's tokenizer (None if the prompt is ids) and the prompt, [1, n]."""
    import torch

    if args.ids is not None:
        words = args.ids.replace(",", " ").split()
        if not words or not all(word.isdecimal() and int(word) < vocabulary for word in words):
            raise SelattnError(f"--ids must be token ids below {vocabulary}, such as '1 17 4', not {args.ids!r}")
        return None, torch.tensor([[int(word) for word in words]])
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").is_file():
        raise SelattnError(f"{folder} has no tokenizer: give the prompt as token ids with --ids")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = sys.stdin.read() if args.prompt is None else args.prompt
    ids = tokenizer(text, return_tensors="pt").input_ids
    if ids.shape[1] == 0:
        raise SelattnError("the prompt is empty: give at least one token")
    return tokenizer, ids


def cost(tokens: int, seconds: float, cache: SelectiveCache) -> str:
    """Tokens per second, the bytes of the cache, and those a cache that keeps everything would have had."""
    held, full = cache.nbytes(), cache.full_nbytes()
    ratio = f"{full / held:.1f} times as much" if held < full else "no more: the text is still short"
    return (
        f"{tokens} tokens, {tokens / seconds:.1f} per second; the cache holds {held:,} bytes, "
        f"a full one would hold {full:,} ({ratio})"
    )
