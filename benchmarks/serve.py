"""Serving beside vLLM with a stock Llama, in the same memory: `python benchmarks/serve.py`, with vLLM installed.

Rivals, all of one shape with random weights: vLLM with a stock Llama; vLLM with our decoder under budgets 16 times
smaller than the longest text; vLLM with the stock Llama under TOVA and the same budgets; and our `Engine` without vLLM.
The memory for keys and values is what the stock model needs for exactly `--fit` of the longest texts. All requests
arrive at once; each has a random prompt of the same length and writes the same number of tokens.

Each rival runs in a process of its own, one after another, so only ratios within one run mean something, and on a
machine that does something else not even those. The decode phase is all steps in which no prompt was read.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

STOCK, OURS, TOVA, ENGINE = "vLLM, stock Llama", "vLLM, ours", "vLLM, stock Llama with TOVA", "our Engine"
RIVALS = (STOCK, OURS, TOVA, ENGINE)
SHAPES: dict[str, dict[str, Any]] = {
    "d12": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12},
    "SmolLM2-135M": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2},
}
MORE = {"d12": (2048, 8000), "SmolLM2-135M": (1536, 49152), "tiny": (256, 500)}  # of the MLP, of the vocabulary
BLOCK = 128  # tokens of a block of the stock model's cache, vLLM's default on CPUs
SHARE = 16  # budgets are this much smaller than the longest text


@dataclass
class Timing:
    """What happened to the requests of one run.

    Attributes:
        began: when all were given.
        times: of each request, when each of its tokens came.
        steps: of each step its seconds, the tokens that it wrote, and whether it read prompts.
        flight: requests in a step, at most.
    """

    began: float = 0.0
    times: dict[str, list[float]] = field(default_factory=dict)
    steps: list[tuple[float, int, bool]] = field(default_factory=list)
    flight: int = 0

    def summary(self) -> dict[str, float]:
        """Rates in tokens/s, times in milliseconds."""
        ended = max(each[-1] for each in self.times.values())
        tokens = sum(map(len, self.times.values()))
        decode = [(seconds, count) for seconds, count, reads in self.steps if not reads]
        first = [each[0] - self.began for each in self.times.values()]
        gaps = [b - a for each in self.times.values() for a, b in itertools.pairwise(each)]
        return {
            "tokens_per_second": tokens / (ended - self.began),
            "decode_tokens_per_second": sum(x for _, x in decode) / max(sum(x for x, _ in decode), 1e-9),
            "decode_steps": len(decode),
            "first_token_p50": 1e3 * statistics.median(first),
            "first_token_p99": 1e3 * _percentile(first, 0.99),
            "between_tokens_p50": 1e3 * statistics.median(gaps),
            "between_tokens_p99": 1e3 * _percentile(gaps, 0.99),
            "in_flight": self.flight,
            "seconds": ended - self.began,
        }


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def budgets_of(layers: int, longest: int) -> list[int]:
    """The paper's for 12 layers; even ones for another shape."""
    from benchmarks.decode import sixteenth

    found = sixteenth(layers, longest).to_json()
    return found if isinstance(found, list) else [found] * layers


def save_models(shape: str, longest: int, folder: Path) -> None:
    """The stock Llama and our decoder, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from selattn import SelectiveConfig, SelectiveForCausalLM

    inner, vocabulary = MORE[shape]
    sizes = {**SHAPES[shape], "head_dim": 64, "intermediate_size": inner, "vocab_size": vocabulary}
    sizes |= {"max_position_embeddings": longest, "tie_word_embeddings": True}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder / "stock")
    budgets = budgets_of(sizes["num_hidden_layers"], longest)
    ours = SelectiveConfig(**sizes, positions="rotary", qk_norm=False, cache_budgets=budgets)
    SelectiveForCausalLM(ours).save_pretrained(folder / "ours")


def with_vllm(rival: str, args: argparse.Namespace, folder: Path) -> Callable[[list[list[int]]], Timing]:
    """A run of requests through vLLM's engine, in this process."""
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    os.environ.update({**environment, "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_LOGGING_LEVEL": "ERROR"})
    from vllm import LLM, SamplingParams

    from selattn.cache import Budgets
    from selattn.vllm.serving import serving

    longest = args.longest
    options: dict[str, Any] = {"max_model_len": longest, "dtype": "float32", "skip_tokenizer_init": True}
    options |= {"max_num_seqs": max(args.requests), "enforce_eager": args.eager, "enable_prefix_caching": False}
    model = folder / ("ours" if rival == OURS else "stock")
    config = json.loads((folder / "ours" / "config.json").read_text())
    space = args.fit * math.ceil(longest / BLOCK)  # blocks of the stock model
    if rival != STOCK:
        policy = None if rival == OURS else "tova"
        found = serving(model, Budgets(tuple(config["cache_budgets"])), policy, "float32", longest)
        space = found.whole * args.fit // found.state
        options["hf_overrides"] = found.overrides
    llm = LLM(str(model), num_gpu_blocks_override=space + 1, **options)
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    schedule, plans = core.scheduler.schedule, []

    def recorded(*given: Any, **named: Any) -> Any:
        plans.append(schedule(*given, **named))
        return plans[-1]

    core.scheduler.schedule = recorded
    wanted = SamplingParams(temperature=0, max_tokens=args.new, ignore_eos=True, detokenize=False)

    def run(prompts: list[list[int]]) -> Timing:
        timing = Timing(began=time.perf_counter())
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), {"prompt_token_ids": prompt}, wanted)
        seen: dict[str, int] = {}
        while engine.has_unfinished_requests():
            plans.clear()
            begin = time.perf_counter()
            outputs = engine.step()
            now = time.perf_counter()
            written = 0
            for output in outputs:
                count = len(output.outputs[0].token_ids)
                timing.times.setdefault(output.request_id, []).extend([now] * (count - seen.get(output.request_id, 0)))
                written += count - seen.get(output.request_id, 0)
                seen[output.request_id] = count
            counts = [count for plan in plans for count in plan.num_scheduled_tokens.values()]
            reads = any(count > 1 for count in counts) or any(plan.scheduled_new_reqs for plan in plans)
            timing.steps.append((now - begin, written, reads))
            timing.flight = max(timing.flight, len(counts))
        return timing

    return run


def with_engine(args: argparse.Namespace, folder: Path) -> Callable[[list[list[int]]], Timing]:
    """The same through our own `Engine`, which has as many rows as fit."""
    from selattn import SelectiveForCausalLM
    from selattn.models.generation import Engine
    from selattn.vllm.serving import serving

    model = SelectiveForCausalLM.from_pretrained(folder / "ours", dtype=torch.float32).eval()
    found = serving(folder / "ours", dtype="float32", longest=args.longest)
    rows = min(max(args.requests), found.whole * args.fit // found.state)

    def run(prompts: list[list[int]]) -> Timing:
        engine = Engine(model, model.new_cache(), rows=rows, piece=2048)
        timing, waiting, names = Timing(began=time.perf_counter()), list(enumerate(prompts)), {}
        while waiting or engine.rows:
            while waiting and len(engine.rows) < rows:
                number, prompt = waiting.pop(0)
                names[engine.add(prompt)] = str(number)
            reads = len(timing.times) < len(names)
            begin = time.perf_counter()
            tokens = engine.step()
            now = time.perf_counter()
            timing.flight = max(timing.flight, len(engine.rows))
            for row in tokens:
                timing.times.setdefault(names[row], []).append(now)
                if len(timing.times[names[row]]) == args.new:
                    engine.remove(row)
            timing.steps.append((now - begin, len(tokens), reads))
        return timing

    return run


def measure(rival: str, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All runs of one rival, after a small one that warms up."""
    run = with_engine(args, folder) if rival == ENGINE else with_vllm(rival, args, folder)
    generator = torch.Generator().manual_seed(1)

    def prompts(count: int, length: int) -> list[list[int]]:
        ids = torch.randint(3, MORE[args.shape][1], (count, length), generator=generator)
        found: list[list[int]] = ids.tolist()
        return found

    with torch.inference_mode():
        run(prompts(2, 16))
        return [
            {"rival": rival, "prompt": length, "requests": count, **run(prompts(count, length)).summary()}
            for length in args.prompts
            for count in args.requests
        ]


def profile(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Where a decode step of our decoder spends its time: seconds of a step, and shares of it."""
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as profiled

    from selattn.ops.backends import cpu_cache

    plain, inside = cpu_cache.call_library, "selattn: the compiled step"

    def call(*given: Any, **named: Any) -> None:
        with record_function(inside):
            plain(*given, **named)

    cpu_cache.call_library = call
    count, length = max(args.requests), max(args.prompts)
    run = with_vllm(OURS, args, folder)
    prompts = torch.randint(3, MORE[args.shape][1], (count, length)).tolist()
    run([prompt[:16] for prompt in prompts])
    with torch.inference_mode(), profiled(activities=[ProfilerActivity.CPU]) as found:
        timing = run(prompts)
    begins = [e.time_range.start for e in found.events() if e.name == "selattn::serve_attention"]
    steps = [seconds for seconds, _, reads in timing.steps if not reads]
    per_step = SHAPES[args.shape]["num_hidden_layers"]
    first = sorted(begins)[-len(steps) * per_step]  # the decode steps are the last ones
    sums: dict[str, float] = {}
    for event in found.events():
        if event.time_range.start >= first:
            sums[event.name] = sums.get(event.name, 0.0) + event.self_cpu_time_total / 1e6
    total = sum(steps)
    words = ("mm", "linear", "gemm", "onednn")
    kinds = {"compiled step of attention": 0.0, "matrix products": 0.0, "other operators": 0.0}
    for name, seconds in sums.items():
        operator = name.startswith(("aten::", "_C::", "vllm::"))
        kind = "matrix products" if operator and any(word in name for word in words) else "other operators"
        kind = "compiled step of attention" if name == inside else kind
        if operator or name == inside:
            kinds[kind] += seconds / total
    return {"milliseconds": 1e3 * total / len(steps), "steps": len(steps), "requests": count, **kinds}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    head = ["prompt", "requests", "rival", "decode tokens/s", "of stock", "whole run", "first token p50", "p99"]
    head += ["between p50", "p99", "in flight"]
    lines = [head, ["---"] * len(head)]
    stock = {(row["prompt"], row["requests"]): row for row in rows if row["rival"] == STOCK}
    for row in sorted(rows, key=lambda row: (row["prompt"], row["requests"])):
        base = stock.get((row["prompt"], row["requests"]), row)
        ratio = row["decode_tokens_per_second"] / base["decode_tokens_per_second"]
        seconds = [row["first_token_p50"] / 1e3, row["first_token_p99"] / 1e3]
        between = [row["between_tokens_p50"], row["between_tokens_p99"]]
        speeds = [f"{row['decode_tokens_per_second']:,.0f}", f"{ratio:.2f}", f"{row['tokens_per_second']:,.0f}"]
        times = [*(f"{x:,.1f} s" for x in seconds), *(f"{x:,.0f} ms" for x in between)]
        head = [f"{row['prompt']:,}", str(row["requests"]), row["rival"]]
        lines.append([*head, *speeds, *times, str(row["in_flight"])])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="d12")
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--new", type=int, default=512, help="tokens that each request writes (default: 512)")
    parser.add_argument("--longest", type=int, help="tokens that budgets and memory are for (default: prompt and new)")
    parser.add_argument("--fit", type=int, default=4, help="longest texts that the stock model has memory for")
    parser.add_argument("--rivals", nargs="+", default=list(RIVALS), choices=RIVALS, metavar="RIVAL")
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--profile", action="store_true", help="where a decode step of ours spends its time, and end")
    parser.add_argument("--out", help="where the record goes (default: results/serve_SHAPE.json)")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a rival, in a process of its own
    args = parser.parse_args()
    args.longest = args.longest or max(args.prompts) + args.new
    if args.one:
        rival, folder, out = json.loads(args.one)
        Path(out).write_text(json.dumps(measure(rival, args, Path(folder))))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_models(args.shape, args.longest, folder)
        if args.profile:
            print(json.dumps(profile(args, folder), indent=1))
            return
        for number, rival in enumerate(args.rivals):
            out = folder / f"{number}.json"
            command = [sys.executable, __file__, *sys.argv[1:], "--one", json.dumps([rival, name, str(out)])]
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
            subprocess.run(command, check=True, env=environment)
            rows += json.loads(out.read_text())
            print(table(rows), flush=True)
    from selattn.utils.records import write_record

    about = {"shape": args.shape, "new": args.new, "fit": args.fit, "compiled": not args.eager, "rows": rows}
    print(write_record(args.out or f"results/serve_{args.shape}.json", about, seed=1))


if __name__ == "__main__":
    main()
