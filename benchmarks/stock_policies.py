"""A stock model under each eviction policy: `python benchmarks/stock_policies.py MODEL TEXT --out FILE`.

With 1, 2, 4 and 8 times less memory, the same budget in every layer: the loss on rows of a text, a text that it writes,
and a passkey test, because loss alone does not show what was lost. A passkey item is a text of `--passkey-tokens`
tokens with a number of five digits said at a random place in it, and asked for at its end; right is a greedy answer
that begins with the number. What is measured is kept beside the record until that is written: the same command goes on.
"""

from __future__ import annotations

import argparse
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from selattn.evaluation.parts import Parts, open_parts
from selattn.models.loading import Loaded, load
from selattn.utils import records
from selattn.utils.distributed import Team

POLICIES, FACTORS = ("h2o", "tova", "window+4"), (2, 4, 8)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
QUESTION = "What is the pass key? The pass key is"


def limits(policy: str | None, factor: int, tokens: int) -> dict[str, Any]:
    """The budgets of a pass over so many tokens."""
    return {} if policy is None else {"cache_budgets": max(2, tokens // factor), "cache_policy": policy}


@torch.inference_mode()
def loss(found: Loaded, rows: torch.Tensor, policy: str | None, factor: int) -> float:
    """Nats for each token, over rows [n, N]."""
    total = 0.0
    for row in rows:
        logits = found.model(row[None], use_cache=False, **limits(policy, factor, len(row))).logits[0, :-1]
        total += float(torch.nn.functional.cross_entropy(logits.float(), row[1:]))
    return total / len(rows)


def passkey(found: Loaded, item: int, tokens: int) -> tuple[torch.Tensor, str]:
    """An item: its ids [1, N] and the number that is asked for."""
    chance = random.Random(item)
    number = str(chance.randint(10_000, 99_999))
    needle = f"The pass key is {number}. Remember it. {number} is the pass key. "
    encode = found.tokenizer.encode
    filler, said, asked = encode(FILLER * (tokens // 10)), encode(needle), encode(QUESTION)
    room = tokens - len(said) - len(asked) - 1
    at = chance.randrange(room)
    ids = [found.tokenizer.bos_id, *filler[:at], *said, *filler[at:room], *asked]
    return torch.tensor([ids]), number


@torch.inference_mode()
def answers(found: Loaded, item: int, tokens: int, policy: str | None, factor: int) -> bool:
    """Whether the model says the number."""
    ids, number = passkey(found, item, tokens)
    model: Any = found.model
    text = model.generate(ids, max_new_tokens=8, do_sample=False, **limits(policy, factor, tokens))
    return found.tokenizer.decode(text[0, ids.shape[1] :].tolist()).strip().startswith(number)


@torch.inference_mode()
def written(found: Loaded, ids: torch.Tensor, policy: str | None, factor: int) -> str:
    """A greedy continuation of a row."""
    model: Any = found.model
    text = model.generate(ids[None], max_new_tokens=60, do_sample=False, **limits(policy, factor, len(ids)))
    return found.tokenizer.decode(text[0, len(ids) :].tolist())


def measure(found: Loaded, rows: torch.Tensor, options: argparse.Namespace, parts: Parts) -> list[dict[str, Any]]:
    """A row for each policy and factor, of what was not measured before."""
    whole = {"model": found.fingerprint, "context": options.context, "rows": options.rows}
    long = {"model": found.fingerprint, "tokens": options.passkey_tokens}
    measured = []
    cells = [(None, 1), *((policy, factor) for policy in POLICIES for factor in FACTORS)]
    for policy, factor in track(cells, description="policies", console=Console(stderr=True)):
        how = {"policy": policy, "factor": factor}
        row: dict[str, Any] = {**how}
        row["loss"] = parts.get({"what": "loss", **whole, **how}, float, partial(loss, found, rows, policy, factor))
        begin = rows[0, : options.context // 2]
        row["text"] = parts.get({"what": "text", **whole, **how}, str, partial(written, found, begin, policy, factor))
        right = [
            parts.get(
                {"what": "passkey", "item": item, **long, **how},
                bool,
                partial(answers, found, item, options.passkey_tokens, policy, factor),
            )
            for item in range(options.items)
        ]
        measured.append(row | ({"passkeys": sum(right)} if right else {}))
    return measured


def main() -> None:
    """Measure what is not measured yet, show, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where the record goes")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--items", type=int, default=50, help="of the passkey test; 0 for none")
    parser.add_argument("--passkey-tokens", type=int, default=1024)
    options = parser.parse_args()
    found = load(options.model)
    ids, size = torch.tensor(found.tokenizer.encode(options.text.read_text())), options.context - 1
    if len(ids) < size * options.rows:
        raise SystemExit(f"{options.text} has {len(ids)} tokens, fewer than {options.rows} rows: give more text")
    rows = ids[: size * options.rows].view(options.rows, size)
    rows = torch.nn.functional.pad(rows, (1, 0), value=found.tokenizer.bos_id)
    with open_parts(options.out, Team()) as parts:
        measured = measure(found, rows, options, parts)
        body = {"model": Path(found.name).name, "fingerprint": found.fingerprint, "rows": measured}
        body |= {"context": options.context, "text_rows": options.rows}
        body |= {"items": options.items, "passkey_tokens": options.passkey_tokens}
        records.write_record(options.out, body, 0)
        parts.remove()
    table = Table("policy", "times less", "loss", "passkeys")
    for row in measured:
        table.add_row(row["policy"] or "-", str(row["factor"]), f"{row['loss']:.4f}", str(row.get("passkeys", "-")))
    Console().print(table)


if __name__ == "__main__":
    main()
