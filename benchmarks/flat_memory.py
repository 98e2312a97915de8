"""The process's memory over a long generated text: `python benchmarks/flat_memory.py`.

A small rotary model with budgets generates 20,000 tokens, one by one; resident memory is read meanwhile. With a pruned
cache it must not grow after the slots are full.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from rich.progress import track

from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.utils import records


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Generate, read, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/flat_memory.json")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    config = SelectiveConfig.from_d(4, positions="rotary", cache_budgets=args.budget)
    model = SelectiveForCausalLM(config).eval()
    token, cache = torch.randint(config.vocab_size, (args.batch, 1)), model.model.new_cache()
    full = (
        args.batch * config.num_hidden_layers * 2 * config.hidden_size * 4
    )  # bytes that a full cache grows by, a token
    readings = []
    with torch.inference_mode():
        for step in track(range(1, args.tokens + 1), "generating"):
            token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
            if step % args.every == 0:
                readings.append({"tokens": step, "resident_bytes": resident_bytes(), "cache_bytes": cache.nbytes()})
    grown = readings[-1]["resident_bytes"] - readings[0]["resident_bytes"]
    would = full * (args.tokens - args.every)
    print(f"resident memory changed by {grown / 2**20:+.1f} MB from token {args.every:,} to {args.tokens:,}")
    print(f"the cache holds {readings[-1]['cache_bytes']:,} bytes throughout; a full one would have grown by {would:,}")
    data = {"budget": args.budget, "batch": args.batch, "d": 4, "grown_bytes": grown, "full_cache_growth": would}
    print(records.write_record(args.out, {**data, "readings": readings}, seed=args.seed))


if __name__ == "__main__":
    main()
