"""A training step of a selective model and of the same model with standard attention.

    python benchmarks/model_step.py

Forward; forward + backward; and the whole step, with clipped gradients and AdamW, as a run takes it. The model is the
paper's of size d with new weights on random tokens, or a trained one (--model) on real text; both have the same
weights, in fp32, and the memory term is included. The two take turns in one process, and the record has the median and
the range of their ratio over the turns. Run it on a quiet machine: PyTorch's threads wait for each other, so a second
busy process costs a multiple.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from zoo_attention import document

from selattn import SelectiveConfig, SelectiveForCausalLM
from selattn.data import read_tokenizer
from selattn.evaluation.speed import seconds
from selattn.models.loading import find_folder
from selattn.utils import records

KINDS = ("standard", "selective")
FORWARD, BOTH, WHOLE = "forward", "forward + backward", "whole step"
CLIP = 1.0  # as runs do


def make(kind: str, args: argparse.Namespace) -> SelectiveForCausalLM:
    """The model, with the same weights for each kind of attention: selection has none of its own."""
    torch.manual_seed(args.seed)
    backend = args.backend if kind == "selective" else "sdpa"  # PyTorch's own flash attention, the rival to beat
    if args.model is not None:
        changes = {"attention": [kind], "backend": backend}
        return SelectiveForCausalLM.from_pretrained(find_folder(args.model), dtype=torch.float32, **changes).train()
    config = SelectiveConfig.from_d(
        args.d,
        max_position_embeddings=args.context,
        attention=kind,
        memory_epsilon=args.epsilon,
        backend=backend,
    )
    return SelectiveForCausalLM(config).train()


def step(model: SelectiveForCausalLM, ids: torch.Tensor, what: str, optimizer: torch.optim.Optimizer) -> None:
    """One step, or the part of it that is asked for."""
    with torch.set_grad_enabled(what != FORWARD):
        loss = model(ids, labels=ids, use_cache=False).loss
        if what != FORWARD:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        if what == WHOLE:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """A row for each part of a step: seconds of each kind, and their ratio."""
    models = {kind: make(kind, args) for kind in KINDS}
    # So small a learning rate that what is learned while it is timed, and so what is forgotten, stays as it was.
    optimizers = {kind: torch.optim.AdamW(model.parameters(), lr=1e-9) for kind, model in models.items()}
    if args.model is None:
        ids = torch.randint(models["standard"].config.vocab_size, (args.batch, args.context))
    else:
        tokenizer = read_tokenizer(find_folder(args.model))
        ids = torch.tensor([document(tokenizer, args.source, args.context)]).expand(args.batch, -1)
    rows: list[dict[str, object]] = []
    for what in (FORWARD, BOTH, WHOLE):
        rivals = {kind: partial(step, model, ids, what, optimizers[kind]) for kind, model in models.items()}
        found = seconds(rivals, args.repeats)
        ratios = [ours / theirs for ours, theirs in zip(found["selective"], found["standard"], strict=True)]
        each = {kind: statistics.median(times) for kind, times in found.items()}
        ratio = each["selective"] / each["standard"]
        rows.append({"what": what, **each, "ratio": ratio, "low": min(ratios), "high": max(ratios)})
    return rows


def draw(rows: list[dict[str, object]], args: argparse.Namespace, console: Console) -> None:
    """The rows as a table."""
    what, threads = args.model or f"d={args.d}", torch.get_num_threads()
    title = f"{what}, context {args.context:,}, batch {args.batch}, fp32, {threads} threads"
    table = Table(title=title, title_justify="left")
    for heading in ("", "standard", "selective", "ratio", "range"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        times = (f"{row[kind]:.3f} s" for kind in KINDS)
        table.add_row(str(row["what"]), *times, f"{row['ratio']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}")
    console.print(table)


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=12)
    parser.add_argument("--model", help="a trained model instead, such as zoo:memory-2048")
    parser.add_argument("--source", default="embedded", help="with --model: the text (default: embedded)")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--epsilon", type=float, default=0.1, help="weight of the memory term (default: 0.1)")
    parser.add_argument("--backend", default="auto", help="of selective attention (default: auto)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/model_step.json")
    args = parser.parse_args()

    rows = measure(args)
    draw(rows, args, Console())
    names = ("d", "model", "context", "batch", "epsilon", "backend", "repeats")
    shape = {**{name: getattr(args, name) for name in names}, "dtype": "float32"}
    print(records.write_record(args.out, {"shape": shape, "rows": rows}, seed=args.seed))


if __name__ == "__main__":
    main()
