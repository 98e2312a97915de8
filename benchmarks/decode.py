"""Decoding beside a stock Llama of the same size, with each of transformers' caches: `python benchmarks/decode.py`.

Rivals: `LlamaForCausalLM` with DynamicCache, with StaticCache, and with StaticCache compiled (its compilation is not
timed). Ours: budgets 16 times smaller than the context, no budgets, and K = 2 in every layer, which is as good as no
attention at all: the limit that any pruning could reach. All have random weights, fp32, and the same sizes. Caches are
filled by the models themselves with a random text; that is done for one row, which is then repeated for a batch.

`--stock` measures, in place of our own decoder, the stock Llama itself made selective by `selattn.make_selective`: one
mask, head 0. Beside it stands the same Llama under H2O, TOVA and Window+4, which select nothing, with K = 128.

Before that, prefill: a whole prompt in one pass into a cache with 16x budgets, beside the stock Llama, whose attention
is PyTorch's SDPA, with DynamicCache.

In each round every rival decodes a few tokens, so what the machine does meanwhile hits all of them. A ratio is taken
within a round; the record has the median and the range over rounds. Results are checked first: no times for wrong ones.
Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from transformers import Cache, DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from selattn import SelectiveConfig, SelectiveForCausalLM, make_selective
from selattn.cache import Budgets
from selattn.evaluation.speed import seconds
from selattn.utils import records
from selattn.utils.tables import Table

PAPER = Budgets((8, 48, 8, 8, 24, 8, 168, 16, 8, 64, 8, 8))  # 16 times less than 512 tokens in each of 12 layers
DYNAMIC, STATIC, COMPILED = "DynamicCache", "StaticCache", "StaticCache, compiled"
PRUNED, WHOLE, LIMIT = "16x budgets", "no budgets", "K = 2"
RIVALS = (DYNAMIC, STATIC, COMPILED)
POLICIES, KEPT = ("h2o", "tova", "window+4"), 128
WORST = 1e-3  # a difference of logits above which a result counts as wrong
Step = Callable[[], Tensor]  # decodes a token for each row of the batch, and gives its logits
Ours = dict[str, tuple[Any, Budgets | None, str | None]]  # a model with budgets and a policy, by name


def make_models(d: int, longest: int, stock: bool) -> tuple[Any, LlamaForCausalLM]:
    """Ours, and a stock Llama of the same sizes; ours is our decoder, or else the same Llama made selective."""
    ours = SelectiveConfig.from_d(d, positions="rotary", max_position_embeddings=longest)
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    same += ("num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings")
    llama = LlamaConfig(**{name: getattr(ours, name) for name in same})
    rival = LlamaForCausalLM(llama).eval()
    if stock:
        return make_selective(copy.deepcopy(rival), selection=0), rival
    return SelectiveForCausalLM(ours).eval(), rival


def sixteenth(layers: int, context: int) -> Budgets:
    """The paper's budgets for its 12 layers; for the small models with which this command is tried, even ones."""
    return PAPER.scaled(context / 512) if layers == 12 else Budgets((max(2, context // 16),) * layers)


def prefilled(model: Any, cache: Cache, text: Tensor) -> Cache:
    """The cache after all tokens of the text."""
    model(text, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def repeated(cache: Cache, batch: int) -> Cache:
    """A copy for a batch of the same row."""
    made = copy.deepcopy(cache)
    made.batch_repeat_interleave(batch)
    return made


def static(cache: DynamicCache, config: LlamaConfig, batch: int, room: int) -> StaticCache:
    """A static cache with the same keys and values, and room for more."""
    made = StaticCache(config=config, max_cache_len=cache.get_seq_length() + room)
    for number, layer in enumerate(cache.layers):
        made.update(*(x.repeat_interleave(batch, 0) for x in (layer.keys, layer.values)), number)
    return made


def ours_of(models: tuple[Any, LlamaForCausalLM], pruned: Budgets, stock: bool) -> Ours:
    """What is measured beside the stock Llama."""
    ours, llama = models
    layers = llama.config.num_hidden_layers
    found: Ours = {PRUNED: (ours, pruned, None), WHOLE: (ours, None, None), LIMIT: (ours, Budgets((2,) * layers), None)}
    if stock:
        plain = make_selective(copy.deepcopy(llama), selection=None)
        found |= {f"{policy}, K = {KEPT}": (plain, Budgets((KEPT,) * layers), policy) for policy in POLICIES}
    return found


def steps_for(
    llama: LlamaForCausalLM, ours: Ours, caches: dict[str, Cache], token: Tensor, room: int, compiled: bool
) -> dict[str, Step]:
    """A step for each rival, with caches of its own."""
    batch = token.shape[0]

    def step(model: Callable[..., Any], cache: Cache) -> Step:
        return lambda: model(token, past_key_values=cache, use_cache=True).logits[:, -1]

    found = {
        DYNAMIC: step(llama, repeated(caches[DYNAMIC], batch)),
        STATIC: step(llama, static(caches[DYNAMIC], llama.config, batch, room)),
    }
    if compiled:
        torch.compiler.reset()
        # Frozen weights are packed for the machine's kernels. The modes that transformers and torch offer beyond this
        # (CUDA graphs, Triton) are for GPUs.
        graph = torch.compile(llama.forward, fullgraph=True, dynamic=False, options={"freezing": True})
        found[COMPILED] = step(graph, static(caches[DYNAMIC], llama.config, batch, room))
    return found | {name: step(model, repeated(caches[name], batch)) for name, (model, *_) in ours.items()}


def check(steps: dict[str, Step], expected: dict[str, Tensor]) -> None:
    """The first step of each against a full forward; compiles what is to be compiled."""
    for name, step in steps.items():
        worst = (step() - expected[DYNAMIC if name in RIVALS else name]).abs().max().item()
        if not worst < WORST:
            sys.exit(f"{name} is wrong by {worst:.1e}: no times are printed for wrong results")


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summary(rounds: dict[str, list[float]], batch: int, tokens: int) -> dict[str, Any]:
    """Speeds and ratios, from the seconds of each round."""

    def ratio(slow: str, fast: str) -> dict[str, float]:
        return spread([a / b for a, b in zip(rounds[slow], rounds[fast], strict=True)])

    rivals, ours = ([name for name in rounds if (name in RIVALS) == rival] for rival in (True, False))
    return {
        "tokens_per_second": {name: spread([batch * tokens / each for each in rounds[name]]) for name in rounds},
        "best": min(rivals, key=lambda name: statistics.median(rounds[name])),
        "times_faster_than": {rival: {name: ratio(rival, name) for name in ours} for rival in rivals},
        "of_the_limit": {name: ratio(LIMIT, name) for name in (PRUNED, WHOLE)},
        "seconds": rounds,
    }


def measure(models: tuple[Any, LlamaForCausalLM], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each context and batch."""
    llama = models[1]
    layers, room, rows = llama.config.num_hidden_layers, (args.repeats + 1) * args.tokens + 2, []
    for context in args.context:
        text = torch.randint(llama.config.vocab_size, (1, context + 1))
        pruned = sixteenth(layers, context)
        ours = ours_of(models, pruned, args.stock)
        caches: dict[str, Cache] = {DYNAMIC: prefilled(llama, DynamicCache(config=llama.config), text[:, :-1])}
        expected = {DYNAMIC: llama(text, use_cache=False, logits_to_keep=1).logits[:, -1]}
        for name, (model, k, policy) in ours.items():
            how = {"cache_budgets": k, "cache_policy": policy}
            caches[name] = prefilled(model, model.new_cache(k, policy), text[:, :-1])
            expected[name] = model(text, use_cache=False, logits_to_keep=1, **how).logits[:, -1]
        for batch in args.batch:
            compiled = not args.no_compile and batch * context <= args.compile_up_to
            steps = steps_for(llama, ours, caches, text[:, -1:].repeat(batch, 1), room, compiled)
            check(steps, expected)
            turns = {name: lambda s=step: [s() for _ in range(args.tokens)] for name, step in steps.items()}
            with torch.compiler.set_stance("fail_on_recompile"):
                rounds = seconds(turns, args.repeats)
            about = {"batch": batch, "context": context, "memory_factor": pruned.memory_factor(layers, context)}
            rows.append(about | summary(rounds, batch, args.tokens))
            del steps, turns  # and with them the caches, before those of the next batch are made
    return rows


def measure_prefill(models: tuple[Any, LlamaForCausalLM], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each context: seconds of a whole prompt, with 16x budgets and of the stock Llama."""
    ours, llama = models
    rows = []
    for context in args.prefill:
        text = torch.randint(llama.config.vocab_size, (1, context))
        budgets = sixteenth(llama.config.num_hidden_layers, context)

        def pruned(text: Tensor = text, budgets: Budgets = budgets) -> Tensor:
            return ours(text, past_key_values=ours.new_cache(budgets), use_cache=True, logits_to_keep=1).logits[:, -1]

        def stock(text: Tensor = text) -> Tensor:
            cache = DynamicCache(config=llama.config)
            return llama(text, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]

        whole = ours(text, use_cache=False, cache_budgets=budgets, logits_to_keep=1).logits[:, -1]
        check({PRUNED: pruned}, {PRUNED: whole})
        rounds = seconds({DYNAMIC: stock, PRUNED: pruned}, args.repeats)
        times = spread([a / b for a, b in zip(rounds[PRUNED], rounds[DYNAMIC], strict=True)])
        rows.append({"context": context, "attention": llama.config._attn_implementation, "time": times})
        rows[-1]["seconds"] = rounds
    return rows


def draw(rows: list[dict[str, Any]], prefill: list[dict[str, Any]], console: Console) -> None:
    """A table for each row, with a line for each rival; and one of prefill."""

    def shown(found: dict[str, float] | None, digits: int = 2) -> str:
        if found is None:
            return ""
        median, low, high = (f"{found[name]:.{digits}f}" for name in ("median", "low", "high"))
        return f"{median} ({low} to {high})"

    for row in rows:
        lines = []
        for name, speed in row["tokens_per_second"].items():
            label = f"stock Llama, {name}" if name in RIVALS else f"ours, {name}"
            times = row["times_faster_than"][row["best"]].get(name)
            lines.append((label, shown(speed, 1), shown(times), shown(row["of_the_limit"].get(name))))
        head = ("", "tokens/s", "times the best rival", "of the limit")
        title = f"decoding, batch {row['batch']}, N = {row['context']:,}"
        console.print(Table(head, lines, title, whole=range(4)).rich())
    lines = []
    for row in prefill:
        middle = 1e3 * statistics.median(row["seconds"][DYNAMIC])
        lines.append((f"{row['context']:,}", f"{middle:,.0f} ({row['attention']})", shown(row["time"])))
    head = ("N", "stock Llama, ms", "times its time")
    console.print(Table(head, lines, "prefill with 16x budgets, batch 1", whole=range(3)).rich())


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=12, help="the model's size (default: 12, as the paper's budgets)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048, 8192], help="prompts to prefill")
    parser.add_argument("--tokens", type=int, default=4, help="decoded by each rival in a round (default: 4)")
    parser.add_argument("--repeats", type=int, default=9, help="rounds (default: 9)")
    parser.add_argument("--stock", action="store_true", help="a stock Llama made selective, in place of our decoder")
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled rival")
    parser.add_argument(
        "--compile-up-to", type=int, default=16 * 2048, help="no compiled rival above this batch * context"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="where the record goes (default: results/decode.json, or decode_stock.json)")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    longest = max(max(args.context) + (args.repeats + 1) * args.tokens + 2, *args.prefill, 0)
    models = make_models(args.d, longest, args.stock)
    with torch.inference_mode():
        prefill = measure_prefill(models, args)
        rows = measure(models, args)
    draw(rows, prefill, Console())
    sizes = {name: getattr(models[0].config, name) for name in ("hidden_size", "intermediate_size", "vocab_size")}
    parameters = dict(zip(("selective", "llama"), (model.num_parameters() for model in models), strict=True))
    shape = {"d": args.d, **sizes, "parameters": parameters, "dtype": "float32"}
    about = {"ours": type(models[0]).__name__, "shape": shape, "tokens": args.tokens, "repeats": args.repeats}
    out = args.out or f"results/decode{'_stock' * args.stock}.json"
    print(records.write_record(out, {**about, "rows": rows, "prefill": prefill}, seed=args.seed))


if __name__ == "__main__":
    main()
