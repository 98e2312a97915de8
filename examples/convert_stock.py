"""From a pretrained model to one that writes with a smaller cache: it learns to forget, then budgets are found.

    python examples/convert_stock.py MODEL TEXT OUT [--steps 400] [--context 256]

MODEL is a folder of transformers, a GGUF file, or a folder of llama2.c; TEXT is a file, of which some documents are
held out; OUT becomes a model for every command. Interrupted, the same command resumes.
"""

import argparse

import torch

import selattn
from selattn.pruning import Until
from selattn.training.config import TextData
from selattn.utils.progress import Shown


def main() -> None:
    """Convert, print the table, and write a text with the budgets that were found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--held-out", type=float, default=0.1, help="share of the documents")
    parser.add_argument("--factor", type=float, help="times less memory (default: as far as the original's loss)")
    parser.add_argument("--prompt", default="Once upon a time")
    arguments = parser.parse_args()

    found = selattn.convert(
        arguments.model,
        TextData(source=arguments.text, validation=arguments.held_out, context=arguments.context),
        arguments.out,
        settings={"schedule.steps": arguments.steps},
        prune=Until(factor=arguments.factor) if arguments.factor else "original",
        search_rows=8,
        resume=True,
        progress=Shown(keep=True),
    )
    if found.record is None:
        raise SystemExit("stopped with a checkpoint; the same command resumes")
    for name, loss in found.record.losses.items():
        print(f"{name:10} loss {loss:.4f}")
    budgeted = found.record.budgeted
    assert budgeted is not None
    print(f"{budgeted.memory_factor:.1f} times less memory: {list(budgeted.budgets)} tokens are kept")

    loaded = selattn.load(arguments.out)  # its config has the budgets, so that they are in force
    model, tokenizer = loaded.model, loaded.tokenizer
    ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(arguments.prompt)]])
    with torch.inference_mode():
        text = model.generate(ids, max_new_tokens=60, do_sample=False)
    print(tokenizer.decode(text[0, 1:].tolist()))


if __name__ == "__main__":
    main()
