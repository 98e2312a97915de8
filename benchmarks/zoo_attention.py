"""Attention of a trained model on real text, and PyTorch's flash attention: `python benchmarks/zoo_attention.py`.

The queries, keys and values of all layers, as the model makes them of one long document, go through the `cpu` backend
and through `scaled_dot_product_attention(is_causal=True)`, in turn, in one run. What a model forgets need not be
computed, so the share of living pairs is printed with the times. Results are checked first. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from selattn import SelectiveForCausalLM
from selattn.data import Tokenizer, read_tokenizer
from selattn.data.sources import documents
from selattn.evaluation import speed
from selattn.evaluation.speed import RIVAL, medians
from selattn.models.loading import find_folder
from selattn.ops import AuxRequest, selective_attention
from selattn.ops.backends import dispatch
from selattn.utils import records


def document(tokenizer: Tokenizer, source: str, length: int) -> list[int]:
    """The first `length` tokens of the first held-out document that has as many."""
    for text in documents(source, "validation"):
        ids = [tokenizer.bos_id, *tokenizer.encode(text)]
        if len(ids) >= length:
            return ids[:length]
    sys.exit(f"no held-out document of {source} has {length} tokens: name another --source, or a smaller --n")


def captured(model: SelectiveForCausalLM, ids: list[int], seed: int) -> list[tuple[Tensor, ...]]:
    """query, key, value and a random gradient of the output, for each layer."""
    requests = []
    attend = dispatch.attend

    def spy(request, backend):
        requests.append(request)
        return attend(request, backend)

    with torch.no_grad(), mock.patch.object(dispatch, "attend", spy):
        model(torch.tensor([ids]), use_cache=False)
    torch.manual_seed(seed)
    layers = []
    for request in requests:
        q, k, v = (x.detach().contiguous().requires_grad_() for x in (request.query, request.key, request.value))
        layers.append((q, k, v, torch.randn_like(q)))
    return layers


def measure(layers: list[tuple[Tensor, ...]], repeats: int) -> list[dict[str, object]]:
    """A row for each layer, and one for all."""
    rows: list[dict[str, object]] = []
    groups = {f"layer {i}": [layer] for i, layer in enumerate(layers, 1)} | {"all layers": layers}
    for what, some in groups.items():
        with torch.no_grad():
            each = [selective_attention(*x[:3], return_aux=AuxRequest(living=True))[1].living.item() for x in some]
            share = sum(each) / len(each)
        row: dict[str, object] = {"what": what, "living": share}
        for name, backward in (("forward", False), ("both", True)):

            def all_of(backend: str, some=some, backward=backward) -> None:
                for tensors in some:
                    speed.run(backend, tensors, backward)

            seconds = medians({backend: lambda b=backend: all_of(b) for backend in (RIVAL, "cpu")}, repeats)
            row |= {f"{name}_ratio": seconds["cpu"] / seconds[RIVAL], f"{name}_ms": 1e3 * seconds["cpu"]}
        rows.append(row)
    return rows


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:memory-2048")
    parser.add_argument("--source", default="embedded", help="the text (default: embedded)")
    parser.add_argument("--n", type=int, help="tokens (default: the model's context)")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/zoo_attention.json")
    args = parser.parse_args()
    path = find_folder(args.model)
    model = SelectiveForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    n = args.n or model.config.max_position_embeddings
    layers = captured(model, document(read_tokenizer(path), args.source, n), args.seed)
    for tensors in layers:
        speed.check("cpu", tensors)
    rows = measure(layers, args.repeats)
    heads = layers[0][0].shape[1]
    title = f"{args.model}, N = {n:,}, {heads} heads of {layers[0][0].shape[3]}: time as a multiple of flash attention"
    table = Table(title=title, title_justify="left")
    for heading in ("", "living pairs", "forward", "forward + backward", "1.2 living + 0.15"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        cells = [f"{row['living']:.1%}", f"{row['forward_ratio']:.2f}", f"{row['both_ratio']:.2f}"]
        table.add_row(str(row["what"]), *cells, f"{1.2 * row['living'] + 0.15:.2f}")
    Console().print(table)
    data = {"model": args.model, "source": args.source, "n": n, "heads": heads, "repeats": args.repeats, "rows": rows}
    print(records.write_record(args.out, data, seed=args.seed))


if __name__ == "__main__":
    main()
