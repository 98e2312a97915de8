"""A stock model under each eviction policy: `python benchmarks/stock_policies.py MODEL TEXT --out FILE`.

With 1, 2, 4 and 8 times less memory, the same budget in every layer: the loss on a text, a generated text,
and a passkey test, because loss alone does not show what was lost. A passkey item is a text of `--passkey-tokens`
tokens with a number of five digits at a random place, which is asked for at the end; a greedy answer that begins with
the number is right. Measurements are stored next to the record until it is written: the same command resumes.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import math
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from selattn.models.loading import Loaded, load
from selattn.utils import records
from selattn.utils.distributed import Team
from selattn.utils.journal import Parts, open_parts

POLICIES, FACTORS = ("h2o", "tova", "window+4"), (2, 4, 8)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
QUESTION = "What is the pass key? The pass key is"


def limits(policy: str | None, factor: int, tokens: int) -> dict[str, Any]:
    """The budgets of a pass over so many tokens."""
    return {} if policy is None else {"cache_budgets": max(2, tokens // factor), "cache_policy": policy}


@torch.inference_mode()
def losses(found: Loaded, rows: torch.Tensor, policy: str | None, factor: int) -> list[float]:
    """Nats for each token, of each of the rows [n, N]."""
    told = []
    for row in rows:
        logits = found.model(row[None], use_cache=False, **limits(policy, factor, len(row))).logits[0, :-1]
        told.append(float(torch.nn.functional.cross_entropy(logits.float(), row[1:])))
    return told


@dataclass(frozen=True)
class Item:
    """One item of the passkey test: its ids [1, N], the number that is asked for, and where it is said."""

    item: int
    ids: torch.Tensor
    number: str
    place: int


def passkey(found: Loaded, item: int, tokens: int) -> Item:
    """The item of that number: the same for every policy."""
    chance = random.Random(item)
    number = str(chance.randint(10_000, 99_999))
    needle = f"The pass key is {number}. Remember it. {number} is the pass key. "
    encode = found.tokenizer.encode
    filler, said, asked = encode(FILLER * (tokens // 10)), encode(needle), encode(QUESTION)
    room = tokens - len(said) - len(asked) - 1
    if room < 1:
        raise SystemExit(f"a passkey item of {tokens} tokens has no room for its number: set a larger --passkey-tokens")
    at = chance.randrange(room)
    ids = [found.tokenizer.bos_id, *filler[:at], *said, *filler[at:room], *asked]
    return Item(item, torch.tensor([ids]), number, at + 1)


class Reader:
    """Answers the items of the test under one policy, those first in which the number is said early.

    The text before the number is the same in all items, and evictions depend on nothing later: it is read once.
    """

    def __init__(self, found: Loaded, policy: str | None, factor: int, tokens: int) -> None:
        self.model: Any = found.model
        self.tokenizer = found.tokenizer
        chosen = limits(policy, factor, tokens)
        self.cache: Any = self.model.new_cache(chosen.get("cache_budgets"), chosen.get("cache_policy"))
        self.read = 0

    @torch.inference_mode()
    def answers(self, item: Item) -> bool:
        """Whether the model says the number."""
        if item.place > self.read:
            new = item.ids[:, self.read : item.place]
            self.model(new, past_key_values=self.cache, logits_to_keep=1)
            self.read = item.place
        cache = copy.deepcopy(self.cache)

        def said(ids: torch.Tensor) -> str:
            return self.tokenizer.decode(ids[0, item.ids.shape[1] :].tolist()).strip()

        def settled(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.tensor([said(ids)[:5] != item.number[: len(said(ids))] or len(said(ids)) >= 5])

        text = self.model.generate(
            item.ids, past_key_values=cache, max_new_tokens=8, do_sample=False, stopping_criteria=[settled]
        )
        return said(text).startswith(item.number)


@torch.inference_mode()
def written(found: Loaded, ids: torch.Tensor, policy: str | None, factor: int) -> str:
    """A greedy continuation of a row."""
    model: Any = found.model
    text = model.generate(ids[None], max_new_tokens=60, do_sample=False, **limits(policy, factor, len(ids)))
    return found.tokenizer.decode(text[0, len(ids) :].tolist())


def measure(found: Loaded, rows: torch.Tensor, options: argparse.Namespace, parts: Parts) -> list[dict[str, Any]]:
    """A row for each policy and factor, of what was not measured before. The passkey test is long, and comes last."""
    whole = {"model": found.fingerprint, "context": options.context, "text": checksum(rows)}
    long = {"model": found.fingerprint, "tokens": options.passkey_tokens}
    cells = [(None, 1), *((policy, factor) for factor in FACTORS for policy in POLICIES)]
    measured = {}
    for policy, factor in track(cells, description="losses and texts", console=Console(stderr=True)):
        how = {"policy": policy, "factor": factor}
        each = parts.get({"what": "losses", **whole, **how}, list[float], partial(losses, found, rows, policy, factor))
        begin = rows[0, : options.context // 2]
        text = parts.get({"what": "text", **whole, **how}, str, partial(written, found, begin, policy, factor))
        measured[policy, factor] = {**how, "loss": sum(each) / len(each), "losses": each, "text": text}
    items = [passkey(found, item, options.passkey_tokens) for item in range(options.items)]
    items.sort(key=lambda item: item.place)
    tested = [cell for wanted in options.passkey_factors for cell in cells if cell[1] == wanted and items]
    for policy, factor in tested:
        reader = Reader(found, policy, factor, options.passkey_tokens)
        name = f"passkeys {policy or 'everything kept'} {factor}x"
        right = []
        for item in track(items, description=name, console=Console(stderr=True)):
            key = {"what": "passkey", "item": item.item, **long, "policy": policy, "factor": factor}
            right.append(parts.get(key, bool, partial(reader.answers, item)))
        measured[policy, factor]["passkeys"] = sum(right)
    return list(measured.values())


def checksum(rows: torch.Tensor) -> str:
    """Of the rows of text: what tells two texts apart."""
    return hashlib.blake2b(rows.numpy().tobytes(), digest_size=16).hexdigest()


def main() -> None:
    """Measure what is missing, show, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where the record goes")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--items", type=int, default=50, help="of the passkey test; 0 for none")
    parser.add_argument("--passkey-tokens", type=int, default=1024)
    parser.add_argument(
        "--passkey-factors", type=int, nargs="+", choices=(1, *FACTORS), default=(1, *FACTORS), metavar="F"
    )
    options = parser.parse_args()
    found = load(options.model)
    ids, size = torch.tensor(found.tokenizer.encode(options.text.read_text())), options.context - 1
    if len(ids) < size * options.rows:
        raise SystemExit(f"{options.text} has {len(ids)} tokens, fewer than {options.rows} rows: give more text")
    rows = ids[: size * options.rows].view(options.rows, size)
    rows = torch.nn.functional.pad(rows, (1, 0), value=found.tokenizer.bos_id)
    with open_parts(options.out, Team()) as parts:
        plain = ids[None, : options.context]  # as others measure perplexity: no <BOS> in front
        key = {"what": "plain", "model": found.fingerprint, "text": checksum(plain)}
        first = parts.get(key, list[float], partial(losses, found, plain, None, 1))[0]
        measured = measure(found, rows, options, parts)
        body: dict[str, Any] = {"model": Path(found.name).name, "fingerprint": found.fingerprint, "rows": measured}
        body |= {"context": options.context, "text_rows": options.rows, "text_checksum": checksum(rows)}
        body |= {"plain_perplexity": math.exp(first), "items": options.items, "passkey_tokens": options.passkey_tokens}
        records.write_record(options.out, body, 0)
        parts.remove()
    table = Table("policy", "times less", "loss", "passkeys")
    for row in measured:
        table.add_row(row["policy"] or "-", str(row["factor"]), f"{row['loss']:.4f}", str(row.get("passkeys", "-")))
    Console().print(table)


if __name__ == "__main__":
    main()
