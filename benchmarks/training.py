"""Training throughput: `python benchmarks/training.py`. Selective beside standard, and the Trainer beside a bare loop.

The runs are those of the zoo (`zoo-standard`, `zoo-selective`, `zoo-memory`), on
the text that comes with Python unless --source names another. The rivals take turns in one process and see the same
batches. What is timed are the steps between the first few and the last: data, forward, backward, clipping, AdamW and,
for the Trainer, its bookkeeping and our log; no evaluation and no checkpoint, which a bare loop would have to pay as
well. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, default_collate
from transformers import set_seed

from lab.runs import find_run
from selattn.cli.settings import override
from selattn.training import RunConfig, train
from selattn.training.datasets import Data, Share, StepBatches, prepare
from selattn.training.model import make_model, model_config
from selattn.utils import records
from selattn.utils.progress import Progress

KINDS = ("standard", "selective", "memory")
WARM = 5  # steps that are not timed


class Clock(Progress):
    """Notes when each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def advance(self, by: float = 1, text: str | None = None) -> None:
        """Note it."""
        if by:
            self.times.append(time.perf_counter())


def with_trainer(run: RunConfig, data: Data) -> float:
    """Seconds of the timed steps with the Trainer."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        train(run, f"{folder}/run", data=data, progress=clock)
    return clock.times[-1] - clock.times[WARM - 1]


def bare(run: RunConfig, data: Data) -> float:
    """Seconds of the same steps in the shortest loop that does the same."""
    set_seed(run.seed)
    model = make_model(run, model_config(run, data.tokenizer)).train()
    adamw = run.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(), adamw.lr, (adamw.beta1, adamw.beta2), adamw.eps, adamw.weight_decay, fused=True
    )
    batches = StepBatches(Share(run.batch.size, 1), run.schedule.steps)
    times = []
    for batch in DataLoader(data.train, batch_sampler=batches, collate_fn=default_collate):
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), adamw.clip)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
    return times[-1] - times[WARM - 1]


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """A row for each kind: tokens per second of the Trainer and of the bare loop."""
    settings = [f"schedule.steps={args.steps + WARM}", "schedule.warmup=0"]
    settings += ["evaluation.every=1_000_000", "evaluation.rows=1"]
    settings += ["checkpoints.every=1_000_000", f"seed={args.seed}"]
    if args.source:
        settings.append(f"data.source={args.source}")
    # The rival is PyTorch's own flash attention.
    rival = {"standard": ["model.backend=sdpa"]}
    runs = {kind: override(find_run(f"zoo-{kind}"), settings + rival.get(kind, [])) for kind in KINDS}
    data = {kind: prepare(run) for kind, run in runs.items()}
    tokens = args.steps * runs["standard"].batch.size * runs["standard"].data.context
    speeds: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.repeats):
        for kind, run in runs.items():
            for rival, seconds in (("bare", bare), ("trainer", with_trainer)):
                speeds.setdefault((kind, rival), []).append(tokens / seconds(run, data[kind]))
    rows: list[dict[str, object]] = []
    for kind in KINDS:
        trainer, loop = speeds[kind, "trainer"], speeds[kind, "bare"]
        lost = statistics.median(1 - ours / theirs for ours, theirs in zip(trainer, loop, strict=True))
        ratio = statistics.median(a / b for a, b in zip(trainer, speeds["standard", "trainer"], strict=True))
        medians = {"trainer": statistics.median(trainer), "bare": statistics.median(loop)}
        rows.append({"kind": kind, "tokens_per_second": medians, "lost": lost, "of_standard": ratio})
    return rows


def draw(rows: list[dict[str, object]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title=f"tokens per second, {torch.get_num_threads()} threads", title_justify="left")
    for heading in ("", "Trainer", "bare loop", "lost by the Trainer", "of standard"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        speed = row["tokens_per_second"]
        assert isinstance(speed, dict)
        shown = (f"{speed['trainer']:,.0f}", f"{speed['bare']:,.0f}", f"{row['lost']:.1%}", f"{row['of_standard']:.2f}")
        table.add_row(str(row["kind"]), *shown)
    console.print(table)


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="timed in each turn (default: 30)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--source", help="the text (default: that which comes with Python)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/training.json")
    args = parser.parse_args()
    rows = measure(args)
    draw(rows, Console())
    shape = {"runs": [f"zoo-{kind}" for kind in KINDS], "steps": args.steps, "repeats": args.repeats}
    shape["source"] = args.source or "embedded"
    print(records.write_record(args.out, {"shape": shape, "rows": rows}, seed=args.seed))


if __name__ == "__main__":
    main()
