"""A stock model with a smaller cache: what each eviction policy costs, in loss and in text.

    python examples/prune_stock.py MODEL TEXT [--factor 4] [--context 256]

MODEL is a folder of transformers, a GGUF file, or a folder of llama2.c; TEXT is a file.
"""

import argparse
from pathlib import Path

import torch

from selattn.models.loading import load

POLICIES = ("h2o", "tova", "window+4")


def main() -> None:
    """Print a table, and a text for each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--factor", type=int, default=4, help="how many times less memory")
    parser.add_argument("--context", type=int, default=256)
    arguments = parser.parse_args()
    found = load(arguments.model)
    model, tokenizer = found.model, found.tokenizer
    ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(arguments.text.read_text())][: arguments.context]])
    budget = max(2, ids.shape[1] // arguments.factor)

    print(f"{ids.shape[1]} tokens, and {budget} of them kept in each layer")
    for policy in (None, *POLICIES):
        limits = {} if policy is None else {"cache_budgets": budget, "cache_policy": policy}
        with torch.inference_mode():
            loss = model(ids, labels=ids, **limits).loss
            text = model.generate(ids[:, : ids.shape[1] // 2], max_new_tokens=30, do_sample=False, **limits)
        written = tokenizer.decode(text[0, ids.shape[1] // 2 :])
        print(f"{policy or 'everything kept':16} loss {loss:.4f}   {written!r}")


if __name__ == "__main__":
    main()
