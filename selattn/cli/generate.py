"""`selattn generate`: continue a text with a model, its cache kept within budgets, and say what that cost."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from torch import Tensor

    from selattn.cache import SelectiveCache
    from selattn.models.loading import Loaded

COLDEST = 1e-6


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register the command."""
    parser = subparsers.add_parser("generate", help="continue a text, with a pruned cache", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a model's folder, a run's folder, or zoo:NAME")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="the text to continue; without it, standard input is read")
    prompt.add_argument("--ids", help="the prompt as token ids, for a model without a tokenizer: '1 17 4'")
    parser.add_argument(
        "--budgets",
        metavar="BUDGETS",
        help="how many tokens each layer may keep: 64, or 8,48,8, a budgets file, or the folder of a search",
    )
    parser.add_argument(
        "--policy",
        help="who leaves when a layer is full, or package.module:Class of your own (default: the model's, selective)",
    )
    parser.add_argument("--max-new-tokens", type=_options.whole(1), default=100, metavar="N")
    parser.add_argument(
        "--temperature",
        type=_options.at_least_0,
        default=0.0,
        help="0, the default, always takes the likeliest token",
    )
    parser.add_argument(
        "--top-k",
        type=_options.whole(0),
        metavar="N",
        help="with a temperature: choose among the N likeliest, 0 for all (default: 50)",
    )
    parser.add_argument("--seed", type=_options.seed, help="with a temperature (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Stream the text to standard output, and what it cost to standard error."""
    if 0 < args.temperature < COLDEST:
        raise SelattnError(f"--temperature must be 0 or at least {COLDEST:g}, not {args.temperature:g}")
    if args.temperature == 0:
        _options.refuse(args, ["top_k", "seed"], "without a --temperature the likeliest token is always taken")
    _options.fill(args, {"top_k": 50, "seed": 0})

    import torch
    from transformers import TextStreamer, set_seed
    from transformers.utils import logging

    from selattn.evaluation.subjects import check_budgets, read_budgets
    from selattn.eviction import import_policy
    from selattn.models.loading import load

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    policy = None if args.policy is None else import_policy(args.policy)
    loaded = load(args.model, dtype=None, device="cpu")
    described = loaded.description
    budgets = None if args.budgets is None else read_budgets(args.budgets)
    if budgets is not None:
        check_budgets(budgets, described, args.policy)
    elif described.budgets is None:
        _options.refuse(args, ["policy"], "without --budgets nothing leaves")
    model: Any = loaded.model
    tokenizer, ids = read_prompt(args, loaded)
    cache = model.new_cache(budgets, policy)
    limit, wanted = described.longest, ids.shape[1] + args.max_new_tokens
    if limit is not None and wanted > limit:
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


def read_prompt(args: argparse.Namespace, loaded: Loaded) -> tuple[Any, Tensor]:
    """The model's tokenizer (None if the prompt is ids) and the prompt, [1, n]."""
    import torch

    if args.ids is not None:
        vocabulary = loaded.description.vocab_size
        words = args.ids.replace(",", " ").split()
        # by its length first: Python refuses to read numbers of thousands of digits
        if not words or not all(word.isdecimal() and len(word) < 19 and int(word) < vocabulary for word in words):
            raise SelattnError(f"--ids must be token ids below {vocabulary}, such as '1 17 4', not {args.ids!r}")
        return None, torch.tensor([[int(word) for word in words]])
    if not loaded.reads_text:
        raise SelattnError(f"{loaded.folder} has no tokenizer: give the prompt as token ids with --ids")
    tokenizer = loaded.tokenizer.hf
    ids = tokenizer(read_text(args.prompt), return_tensors="pt").input_ids
    if ids.shape[1] == 0:
        raise SelattnError("the prompt is empty: give at least one token")
    return tokenizer, ids


def read_text(prompt: str | None) -> str:
    """The prompt, or else standard input, which must be UTF-8 as well."""
    if prompt is not None:
        if any("\ud800" <= letter <= "\udfff" for letter in prompt):  # how Python spells bytes that are not
            raise SelattnError("--prompt is not UTF-8: convert it with iconv")
        return prompt
    if sys.stdin is None:
        raise SelattnError("there is no prompt: give --prompt, or a text on standard input")
    try:
        return sys.stdin.buffer.read().decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise SelattnError(
            f"standard input is not UTF-8: byte {error.start} is 0x{byte:02x}; convert it with iconv"
        ) from None


def cost(tokens: int, seconds: float, cache: SelectiveCache) -> str:
    """Tokens per second, the bytes of the cache, and, if it is pruned, those of one that keeps every token."""
    held, full, seen = cache.nbytes(), cache.full_nbytes(), cache.get_seq_length()
    budgets = [layer.budget for layer in cache.layers if layer.budget is not None]
    told = f"{tokens} tokens, {tokens / seconds:.1f} per second; "
    if not budgets:
        return told + f"no budgets are set: the cache keeps all {seen} tokens, in {held:,} bytes"
    if seen <= min(budgets):
        return told + f"the text is within every budget: the cache keeps all {seen} tokens, in {held:,} bytes"
    return told + (
        f"the pruned cache takes {held:,} bytes; "
        f"one that keeps all {seen} tokens would take {full:,}, {full / held:.1f} times as much"
    )
