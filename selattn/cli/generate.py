"""`selattn generate`: continue a text with a model, its cache kept within budgets, and tell the speed and memory."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from selattn.cache import Budgets
    from selattn.models.loading import Loaded
    from selattn.models.protocols import KVCache

COLDEST = 1e-6


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn generate` and its options to the command line."""
    parser = _options.add_command(subparsers, "generate", "continue a text, with a pruned cache", __doc__)
    parser.add_argument("model", metavar="MODEL", help="a model's folder, a run's folder, or zoo:NAME")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the text to continue (default: standard input)")
    prompt.add_argument("--ids", help="the prompt as token ids, for a model without a tokenizer: '1 17 4'")
    parser.add_argument(
        "--budgets",
        metavar="BUDGETS",
        help="how many tokens each layer may keep: 64, or 8,48,8, a budgets file, or the folder of a search",
    )
    parser.add_argument(
        "--policy", help="which token a full layer evicts, or package.module:Class of your own (default: the model's)"
    )
    _options.number(parser, "--max-new-tokens", "the most to generate", 100)
    parser.add_argument(
        "--temperature",
        type=_options.at_least_0,
        default=0.0,
        metavar="T",
        help="0, the default, always takes the likeliest token",
    )
    _options.number(parser, "--top-k", "with a temperature: draw from the N likeliest, 0 for all", 50, least=0)
    _options.add_seed(parser, "with a temperature")


def run(args: argparse.Namespace) -> int:
    """Stream the text to standard output, and what it cost to standard error."""
    if 0 < args.temperature < COLDEST:
        raise SelattnError(f"--temperature must be 0 or at least {COLDEST:g}, not {args.temperature:g}")
    if args.temperature == 0:
        _options.refuse(args, ["top_k", "seed"], "without a --temperature the likeliest token is always taken")

    import torch

    from selattn.cache import import_policy, make_policy
    from selattn.evaluation.subjects import check_budgets, read_budgets
    from selattn.models.generation import continued, greedy, sampler
    from selattn.models.loading import load

    policy = None if args.policy is None else import_policy(args.policy)
    loaded = load(args.model, dtype=None, device="cpu")
    described = loaded.description
    budgets = None if args.budgets is None else read_budgets(args.budgets)
    if budgets is not None:
        check_budgets(budgets, described, args.policy)
    elif described.budgets is None:
        _options.refuse(args, ["policy"], "without --budgets nothing is evicted")
    model = loaded.model
    prompt = read_prompt(loaded, args.prompt, args.ids)
    if described.longest is not None and len(prompt) + args.max_new_tokens > described.longest:
        raise SelattnError(
            f"prompt and new tokens make {len(prompt) + args.max_new_tokens}, and the model has {described.longest} "
            f"learned positions: --max-new-tokens can be {max(described.longest - len(prompt), 0)} here"
        )
    torch.manual_seed(args.seed)
    choose = sampler(args.temperature, args.top_k) if args.temperature > 0 else greedy
    cache = model.new_cache(budgets, policy)
    began = time.perf_counter()
    with torch.inference_mode():
        count = write(prompt, continued(model, prompt, args.max_new_tokens, cache, choose), loaded, args.ids is None)
    seconds = time.perf_counter() - began
    in_force = (policy or make_policy(described.policy)).evicts
    limits = (budgets or described.budgets) if in_force else None
    print(cost(count, seconds, cache, limits), file=sys.stderr)
    return 0


def write(prompt: list[int], tokens: Iterator[int], loaded: Loaded, text: bool) -> int:
    """Print the prompt and the tokens as they come, as a text or as ids; returns the number of tokens."""
    if not text:
        ids = list(tokens)
        print(*prompt, *ids, flush=True)
        return len(ids)
    import torch
    from transformers import TextStreamer

    streamer, count = TextStreamer(loaded.tokenizer.hf, skip_special_tokens=True), 0
    streamer.put(torch.tensor(prompt))
    for token in tokens:
        streamer.put(torch.tensor([token]))
        count += 1
    streamer.end()
    sys.stdout.flush()
    return count


def cost(tokens: int, seconds: float, cache: KVCache, budgets: Budgets | None) -> str:
    """Tokens per second, the bytes of the cache, and, if it is pruned, those of one that keeps every token."""
    held, full, seen = cache.nbytes(), cache.full_nbytes(), cache.get_seq_length()
    told = f"{tokens} tokens, {tokens / seconds:.1f} per second; "
    if budgets is None:
        return told + f"no budgets are set: the cache keeps all {seen} tokens, in {held:,} bytes"
    if seen <= min(budgets):
        return told + f"the text is within every budget: the cache keeps all {seen} tokens, in {held:,} bytes"
    return told + (
        f"the pruned cache takes {held:,} bytes; "
        f"one that keeps all {seen} tokens would take {full:,}, {full / held:.1f} times as much"
    )


def read_prompt(loaded: Loaded, prompt: str | None, ids: str | None) -> list[int]:
    """The tokens of the prompt, of standard input, or of `--ids`."""
    if ids is not None:
        vocabulary = loaded.description.vocab_size
        words = ids.replace(",", " ").split()
        # by its length first: Python refuses to read numbers of thousands of digits
        if not words or not all(word.isdecimal() and len(word) < 19 and int(word) < vocabulary for word in words):
            raise SelattnError(f"--ids must be token ids below {vocabulary}, such as '1 17 4', not {ids!r}")
        return [int(word) for word in words]
    if not loaded.reads_text:
        raise SelattnError(f"{loaded.folder} has no tokenizer: give the prompt as token ids with --ids")
    tokens: list[int] = loaded.tokenizer.hf(read_text(prompt)).input_ids
    if not tokens:
        raise SelattnError("the prompt is empty: give at least one token")
    return tokens


def read_text(prompt: str | None) -> str:
    """The prompt, or else standard input; both must be UTF-8."""
    if prompt is not None:
        if any("\ud800" <= letter <= "\udfff" for letter in prompt):  # Python's sign for bytes that are not UTF-8
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
