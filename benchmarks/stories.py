"""Why stories260K has another loss on a file of TinyStories than its document says: measured step by step.

`python benchmarks/stories.py CHECKPOINTS TEXT`: the folder with stories260K.bin, tok512.bin and stories260K.md, and a
file in which stories end with a line and have blank lines between their paragraphs. First whether the model says the
greedy text of its document. Then its loss on the paragraphs, on the stories, on the stories with the quotation marks
that were decoded wrongly mended, with single line ends between paragraphs, too, and on texts that it samples itself: a
model that fits its training text has on these about the loss that it had there.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from selattn.data import Reading, Tokenizer, documents
from selattn.data.rows import DocumentRows
from selattn.data.store import build_store
from selattn.data.tokenizer import from_sentencepiece, sentencepiece_from_llama2c
from selattn.evaluation import log_perplexity, make_batches
from selattn.models import make_selective
from selattn.models.formats import read_llama2c
from selattn.utils import records

QUOTES = {"â€œ": "“", "â€™": "’", "â€˜": "‘", "â€”": "—", "â€“": "–", "â€": "”"}  # UTF-8 that was read as Windows-1252


def mended(text: str) -> str:
    """With the quotation marks as they were meant."""
    for wrong, right in QUOTES.items():
        text = text.replace(wrong, right)
    return text


def loss(model: Any, tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Any]:
    """On one document in each row, cut at the context size."""
    with tempfile.TemporaryDirectory() as made:
        rows = DocumentRows(build_store(Path(made) / "store", texts, tokenizer), model.config.max_position_embeddings)
        batches = make_batches([rows[i] for i in range(len(rows))], 16)
    tokens = sum(batch.tokens for batch in batches)
    return {"loss": log_perplexity(model, batches), "documents": len(rows), "tokens": tokens}


@torch.inference_mode()
def own_texts(model: Any, count: int, seed: int) -> dict[str, Any]:
    """The loss on texts that are sampled from the model, each until its end or that of the context."""
    torch.manual_seed(seed)
    cache, ids = model.new_cache(), torch.full((count, 1), model.config.bos_token_id)
    going, found, tokens = torch.ones(count, dtype=torch.bool), 0.0, 0
    for _ in range(model.config.max_position_embeddings - 1):
        logits = model(ids, past_key_values=cache, use_cache=True).logits[:, -1].log_softmax(-1)
        ids = torch.multinomial(logits.exp(), 1)
        found -= float(logits.gather(1, ids)[going].sum())
        tokens += int(going.sum())
        going &= ids[:, 0] != model.config.eos_token_id
    return {"loss": found / tokens, "documents": count, "tokens": tokens}


def greedy_agrees(model: Any, tokenizer: Tokenizer, page: str) -> bool:
    """Whether the model says what its document shows for a temperature of 0."""
    shown = re.search(r"-t 0\.0\n(.*?)\n```", page, re.DOTALL)
    assert shown is not None
    start = torch.tensor([[model.config.bos_token_id]])
    ids = model.generate(start, max_new_tokens=300, do_sample=False)[0, 1:]
    return tokenizer.decode(ids.tolist()).startswith(shown[1])


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/stories.json")
    args = parser.parse_args()
    pieces = args.checkpoints / "tok512.bin"
    tokenizer = Tokenizer(from_sentencepiece(sentencepiece_from_llama2c(pieces), str(pieces)))
    model = make_selective(read_llama2c(args.checkpoints / "stories260K.bin"), selection=None, cache_policy="window+4")
    paragraphs, stories = (
        list(documents(args.text, "validation", Reading(separator=separator, validation=1.0)))
        for separator in ("blank", "single")
    )
    rows = {
        "paragraphs as documents": loss(model, tokenizer, paragraphs),
        "stories as documents": loss(model, tokenizer, stories),
        "quotation marks mended": loss(model, tokenizer, [mended(text) for text in stories]),
        "single line ends, too": loss(model, tokenizer, [re.sub("\n+", "\n", mended(text)) for text in stories]),
        "its own texts": own_texts(model, args.samples, args.seed),
    }
    agrees = greedy_agrees(model, tokenizer, (args.checkpoints / "stories260K.md").read_text())
    table = Table("text", "loss", "documents", "tokens")
    for name, row in rows.items():
        table.add_row(name, f"{row['loss']:.4f}", f"{row['documents']:,}", f"{row['tokens']:,}")
    Console().print(table)
    print("the greedy text is", "that of the document" if agrees else "another than in the document")
    print(records.write_record(args.out, {"greedy_text_agrees": agrees, "rows": rows}, seed=args.seed))


if __name__ == "__main__":
    main()
