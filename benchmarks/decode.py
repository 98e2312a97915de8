"""Decoding with a pruned cache beside the same model with standard attention and transformers' DynamicCache.

`python benchmarks/decode.py`: tokens per second as a ratio in one run, for several batch sizes and contexts, with
random weights and caches filled with random keys and values. "attention" is the attention of all layers alone, the
cache's update included. "free" is what a step would gain if attention and cache took no time at all: the projections,
the MLP and the output layer are the same for all, so nothing can be faster than that. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as nnf
from transformers import DynamicCache

from selattn import records
from selattn.cache import Budgets, Rules, SelectiveCache, Tokens, attend
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.parts import rotary_angles, rotate
from selattn.ops import Selection
from selattn.timing import medians

PAPER = Budgets((8, 48, 8, 8, 24, 8, 168, 16, 8, 64, 8, 8))  # 16 times less than 512 tokens in each of 12 layers
STANDARD, PRUNED, WHOLE = "standard, DynamicCache", "selective, 16x budgets", "selective, K >= N"
FREE = "no attention"


class Standard(torch.nn.Module):
    """The same layers with standard attention over a DynamicCache, as any decoder of transformers decodes.

    Without a cache there is no attention: the queries pass for what it would give.
    """

    def __init__(self, model: SelectiveForCausalLM) -> None:
        super().__init__()
        self.inner = model

    def forward(self, ids: torch.Tensor, position: int, cache: DynamicCache | None) -> torch.Tensor:
        """One step: logits of the next token."""
        model = self.inner.model
        x = model.embed_tokens(ids)
        rotary = rotary_angles(model.config, torch.full(ids.shape, position))
        for number, layer in enumerate(model.layers):
            block = layer.attention
            h = layer.attention_norm(x)
            query = rotate(block.q_norm(block._heads(block.q_proj(h))), rotary)
            key = rotate(block.k_norm(block._heads(block.k_proj(h))), rotary)
            value = block._heads(block.v_proj(h))
            mixed = query
            if cache is not None:
                key, value = cache.update(key, value, number)
                mixed = nnf.scaled_dot_product_attention(query, key, value, enable_gqa=True)
            x = x + block.o_proj(mixed.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.mlp_norm(x))
        return self.inner.lm_head(model.norm(x))


def random_tokens(config: SelectiveConfig, batch: int, count: int) -> Tokens:
    """Queries, keys and values for one layer."""

    def draw(heads: int) -> torch.Tensor:
        return torch.randn(batch, heads, count, config.head_dim)

    return Tokens(draw(config.num_attention_heads), draw(config.num_key_value_heads), draw(config.num_key_value_heads))


def filled(config: SelectiveConfig, batch: int, context: int, budgets: Budgets) -> SelectiveCache:
    """A cache as it is after `context` random tokens."""
    cache = SelectiveCache(config.num_hidden_layers, budgets)
    for layer in cache.layers:
        held = min(layer.budget, context)
        tokens = random_tokens(config, batch, held)
        layer.allocate(tokens.key, tokens.value, 1, None)
        layer.keys[..., :held, :] = tokens.key
        layer.values[..., :held, :] = tokens.value
        layer.position[..., :held] = torch.arange(context - held, context)
        layer.position[..., 0] = 0
        layer.state.uniform_()
        layer.length.fill_(context)
        layer.seen.fill_(context)
    return cache


def measure(config: SelectiveConfig, batch: int, context: int, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step, and of its attention alone, for the three."""
    torch.manual_seed(args.seed)
    model = SelectiveForCausalLM(config).eval()
    standard = Standard(model)
    ids = torch.randint(config.vocab_size, (batch, 1))
    sixteen = PAPER.scaled(context / 512)
    budgets = {PRUNED: sixteen}
    if batch * context <= args.most:
        budgets[WHOLE] = Budgets(context + 2 * args.repeats + 2)  # room for all steps of the run
    new = random_tokens(config, batch, 1)
    rules = Rules(selection=Selection())

    def dynamic() -> DynamicCache:
        cache = DynamicCache()
        for number in range(config.num_hidden_layers):
            tokens = random_tokens(config, batch, context)
            cache.update(tokens.key, tokens.value, number)
        return cache

    plain = dynamic()
    caches = {name: filled(config, batch, context, k) for name, k in budgets.items()}

    def standard_attention() -> None:
        for number in range(config.num_hidden_layers):
            key, value = plain.update(new.key, new.value, number)
            nnf.scaled_dot_product_attention(new.query, key, value, enable_gqa=True)
        plain.crop(-1)

    def standard_step() -> None:
        standard(ids, context, plain)
        plain.crop(-1)

    def free_step() -> None:
        standard(ids, context, None)

    def attention(name: str) -> None:
        for layer in caches[name].layers:
            attend(layer, new, rules)

    def step(name: str) -> None:
        model(ids, past_key_values=caches[name], cache_budgets=budgets[name])

    with torch.inference_mode():
        rivals = {STANDARD: standard_step, FREE: free_step, **{n: lambda n=n: step(n) for n in budgets}}
        steps = medians(rivals, args.repeats)
        alone = medians({STANDARD: standard_attention, **{n: lambda n=n: attention(n) for n in budgets}}, args.repeats)
    return {
        "batch": batch,
        "context": context,
        "memory_factor": sixteen.memory_factor(config.num_hidden_layers, context),
        "tokens_per_second": {name: batch / seconds for name, seconds in steps.items()},
        "speed_ratio": {name: steps[STANDARD] / steps[name] for name in (*budgets, FREE)},
        "attention_ratio": {name: alone[STANDARD] / alone[name] for name in budgets},
    }


def draw(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="decoding: times as fast as standard attention with a DynamicCache", title_justify="left")
    headings = ("batch", "N", "standard tokens/s", "16x", "attention", "K >= N", "attention", "free")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        found = [row[part].get(name) for name in (PRUNED, WHOLE) for part in ("speed_ratio", "attention_ratio")]
        found.append(row["speed_ratio"][FREE])
        cells = ["-" if ratio is None else f"{ratio:.2f}" for ratio in found]
        table.add_row(str(row["batch"]), f"{row['context']:,}", f"{row['tokens_per_second'][STANDARD]:.1f}", *cells)
    console.print(table)


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=12, choices=[12], help="the paper's budgets are for 12 layers")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--most", type=int, default=16 * 2048, help="no K >= N above this batch * context: memory")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/decode.json")
    args = parser.parse_args()
    config = SelectiveConfig.from_d(args.d, positions="rotary", max_position_embeddings=max(args.context))
    pairs = [(batch, context) for context in args.context for batch in args.batch]
    rows = [measure(config, *pair, args) for pair in pairs]
    draw(rows, Console())
    print(records.write_record(args.out, {"d": args.d, "dtype": "float32", "rows": rows}, seed=args.seed))


if __name__ == "__main__":
    main()
