"""A real model, converted and pruned: `python benchmarks/convert_pretrained.py MODEL TEXT TEST --out FILE`.

MODEL is converted on TEXT (resumable, in `--runs`), once for each number of `--steps`. Then, on rows of TEST, it
measures the loss of the original under H2O, TOVA and Window+4, and of the converted models by their own selection, with
the same budget in every layer, and the memory factors at the original's loss and at 1% more perplexity. All models also
answer the passkey test and write a text, unpruned and with 4 times less memory.

Training on the text lowers the loss by itself, and there is no control here. So judge a conversion by what 4 times less
memory costs of its own unpruned loss. The record has this cost for each number of training tokens, and the number at
which it should be 1% of perplexity, by a power law through the shortest and the longest conversion. Measurements are
stored next to the record until it is written: the same command resumes.
"""

from __future__ import annotations

import argparse
import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch
from conversion import crossing
from rich.console import Console
from rich.table import Table
from stock_policies import POLICIES, Reader, checksum, losses, passkey, written

from selattn.conversion import ConversionRecord, convert
from selattn.models.loading import Loaded, load
from selattn.training.config import TextData
from selattn.utils import records
from selattn.utils.distributed import Team
from selattn.utils.journal import Parts, open_parts
from selattn.utils.progress import Shown

FACTORS, SHOWN = (1, 2, 4, 8), 4  # times less memory; what texts are written and passkeys asked with
MORE = math.log(1.01)  # nats: 1% of perplexity
MUCH = math.log(1e6)  # times more tokens: a law that is drawn further says nothing


def mean_loss(found: Loaded, rows: torch.Tensor, policy: str | None, factor: int) -> float:
    """Nats per token over rows [n, N]."""
    return statistics.fmean(losses(found, rows, policy, factor))


def passkeys(found: Loaded, policy: str | None, factor: int, options: argparse.Namespace) -> int:
    """How many items of the passkey test are answered; items with an early number come first."""
    reader = Reader(found, policy, factor, options.passkey_tokens)
    items = [passkey(found, item, options.passkey_tokens) for item in range(options.items)]
    return sum(reader.answers(item) for item in sorted(items, key=lambda item: item.place))


def measure(
    found: Loaded, rows: torch.Tensor, policy: str, options: argparse.Namespace, parts: Parts
) -> dict[str, Any]:
    """Measure one model under one policy, reusing earlier parts."""
    around = {"model": found.fingerprint, "context": options.context, "rows": checksum(rows)}
    around |= {"items": options.items, "tokens": options.passkey_tokens}
    result: dict[str, Any] = {"policy": policy, "losses": {}}
    for factor in FACTORS:
        chosen = None if factor == 1 else policy
        key = {**around, "policy": chosen, "factor": factor}
        loss = parts.get({"what": "loss", **key}, float, partial(mean_loss, found, rows, chosen, factor))
        result["losses"][str(factor)] = loss
        if factor not in (1, SHOWN):
            continue
        begin = rows[0, : options.context // 2]
        said = parts.get({"what": "text", **key}, str, partial(written, found, begin, chosen, factor))
        right = parts.get({"what": "passkey", **key}, int, partial(passkeys, found, chosen, factor, options))
        result[f"{factor} times less"] = {"text": said, "passkeys": right}
    return result


def converted(options: argparse.Namespace, steps: int) -> ConversionRecord:
    """The model converted in that many steps; an unfinished conversion is resumed."""
    settings = {"schedule.steps": steps, "optimizer.lr": options.lr, "batch.size": 2, "batch.micro": 1}
    settings |= {"checkpoints.every": 10, "checkpoints.keep": 1, "evaluation.every": 10**6, "evaluation.rows": 8}
    settings |= {"evaluation.batch": 1, "log_every": 5, "machine.precision": options.precision}
    data = TextData(source=options.text, separator=options.separator, layout="packed", context=options.context)
    runs = options.runs / str(steps)
    done = convert(options.model, data, runs, settings=settings, resume=True, progress=Shown(keep=True))
    if done.record is None:
        raise SystemExit("stopped with a checkpoint; the same command goes on")
    return done.record


def expected_tokens(excess: dict[int, float], limit: float) -> float | None:
    """Tokens of training at which a power law through the first and the last point is at the limit.

    excess: nats that pruning costs, by tokens of training. None where a point is not above 0, or where more training
    hardly helped.
    """
    (first, before), (last, after) = min(excess.items()), max(excess.items())
    if first == last or min(before, after) <= 0 or after >= before:
        return None
    slope = math.log(before / after) / math.log(last / first)
    more = math.log(after / limit) / slope
    return last * math.exp(more) if more < MUCH else None


def main() -> None:
    """Convert, measure what is missing, show, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text", help="to train on")
    parser.add_argument("test", type=Path, help="to measure on")
    parser.add_argument("--out", type=Path, required=True, help="where the record goes")
    parser.add_argument("--runs", type=Path, default=Path("runs/convert_pretrained"))
    parser.add_argument("--separator", default="blank", help="between documents of the text")
    parser.add_argument("--steps", type=int, nargs="+", default=[60, 150], help="a conversion of each length")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="to train in")
    parser.add_argument("--lr", default="5e-5")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--items", type=int, default=10, help="of the passkey test; 0 for none")
    parser.add_argument("--passkey-tokens", type=int, default=512)
    options = parser.parse_args()
    original = load(options.model)
    ids, size = torch.tensor(original.tokenizer.encode(options.test.read_text())), options.context - 1
    if len(ids) < size * options.rows:
        raise SystemExit(f"{options.test} has {len(ids)} tokens, fewer than {options.rows} rows: give more text")
    rows = ids[: size * options.rows].view(options.rows, size)
    rows = torch.nn.functional.pad(rows, (1, 0), value=original.tokenizer.bos_id)
    done = {steps: converted(options, steps) for steps in sorted({*options.steps})}
    with open_parts(options.out, Team()) as parts:
        lines = {f"original, {policy}": measure(original, rows, policy, options, parts) for policy in POLICIES}
        limit = lines[f"original, {POLICIES[0]}"]["losses"]["1"]
        excess = {}
        for steps, record in done.items():
            line = measure(load(options.runs / str(steps)), rows, "selective", options, parts)
            lines[f"converted, {steps} steps"] = line
            excess[record.tokens] = line["losses"][str(SHOWN)] - line["losses"]["1"]
        for line in lines.values():
            curve = {float(factor): value for factor, value in line["losses"].items()}
            line["factor"] = {"equal": crossing(curve, limit), "1% more": crossing(curve, limit + MORE)}
        body = {"model": Path(options.model).name, "fingerprint": original.fingerprint}
        body |= {"conversions": list(done.values()), "context": options.context, "text_rows": options.rows}
        body |= {"items": options.items, "lines": lines, "cost": {str(at): nats for at, nats in excess.items()}}
        body |= {"expected_tokens": expected_tokens(excess, MORE)}
        records.write_record(options.out, body, 0)
        parts.remove()
    table = Table("", *(f"{factor}x" for factor in FACTORS), "factor, equal", "factor, +1%", f"passkeys, {SHOWN}x")
    for name, line in lines.items():
        at = ["never" if value is None else f"{value:.1f}" for value in line["factor"].values()]
        cells = [f"{value:.4f}" for value in line["losses"].values()]
        table.add_row(name, *cells, *at, str(line[f"{SHOWN} times less"]["passkeys"]))
    Console().print(table)


if __name__ == "__main__":
    main()
