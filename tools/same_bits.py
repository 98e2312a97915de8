"""Whether two versions of selattn give the same bits: `python -m tools.same_bits OLD NEW` names what differs.

OLD and NEW are checkouts, each with its compiled library in it. A fixed list of calls runs in both, in processes of
their own, on this machine with one thread: every backend's output, M and gradients; logits of the zoo's models with and
without budgets; generated tokens for each policy; 50 training steps with the memory loss; one search for budgets. Token
ids are drawn from a seed, independent of any tokenizer. `--record FILE` keeps the result. OLD may be a version whose
operator still has `return_f`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BACKENDS = ("reference", "sdpa", "chunked", "cpu")
POLICIES = ("selective", "h2o", "tova", "window+4", "window")
TEXT_MODELS = ("standard", "selective", "memory", "memory-2048")


def digest(*tensors: Any) -> str:
    """Of the bits of tensors, their shapes and dtypes."""
    import torch

    found = hashlib.blake2b(digest_size=12)
    for x in tensors:
        x = x.detach().cpu().contiguous()
        found.update(f"{tuple(x.shape)} {x.dtype}".encode())
        found.update(x.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def attend(wanted: tuple[str, ...], q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, ...]:
    """The output of selective attention and the named extras, by the old or the new spelling."""
    import selattn

    if hasattr(selattn, "AuxRequest"):
        if "tolerance" in options:
            options["kernel_options"] = {"tolerance": options.pop("tolerance")}
        output, aux = selattn.selective_attention(
            q, k, v, return_aux=selattn.AuxRequest(**dict.fromkeys(wanted, True)), **options
        )
        return (output, *(getattr(aux, name) for name in wanted))
    old = {"final_f": "state"}
    names = [old.get(name, name) for name in wanted]
    found = selattn.selective_attention(q, k, v, **{f"return_{name}": True for name in names}, **options)
    return (found.output, *(getattr(found, name) for name in names))


def situations() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, sizes and options of the operator's calls."""
    import torch

    from selattn import Selection, Sequences

    batch, n = 2, 131
    real = torch.ones(batch, n, dtype=torch.bool)
    real[0, :17] = False
    documents = torch.tensor([[0] * 40 + [1] * 60 + [2] * 31, [0] * 131])
    until = torch.randint(0, 200, (batch, n), generator=torch.Generator().manual_seed(5))
    yield "plain", {}, {}
    yield "fp64", {"dtype": torch.float64}, {}
    yield "bf16", {"dtype": torch.bfloat16}, {}
    yield "grouped heads", {"groups": 2}, {"enable_gqa": True}
    yield "padded", {}, {"sequences": Sequences.from_mask(real)}
    yield "packed", {}, {"sequences": Sequences.from_documents(documents)}
    yield "window and soft cap", {}, {"window": 33, "softcap": 5.0}
    yield "no constraints", {}, {"selection": Selection(1, False, False, False, False)}
    yield "strength and tau", {}, {"strength": 0.3, "tau": 4.0}
    yield "evicted keys", {}, {"visible_until": until}
    yield "nothing left out", {}, {"tolerance": 0.0}


def operator() -> Iterator[tuple[str, str]]:
    """Outputs, M and gradients of every backend."""
    import torch

    import selattn
    from selattn.errors import SelattnError

    for name, sizes, options in situations():
        for backend in BACKENDS:
            chance = torch.Generator().manual_seed(1)
            dtype, groups = sizes.get("dtype", torch.float32), sizes.get("groups", 4)
            shapes = ((2, 4, 131, 24), (2, groups, 131, 24), (2, groups, 131, 20))
            inputs = [torch.randn(s, generator=chance).to(dtype).requires_grad_() for s in shapes]
            try:
                output, memory = attend(("memory",), *inputs, backend=backend, **options)
            except SelattnError:  # a backend says what it cannot do
                yield f"selective, {backend}, {name}", "refused"
            else:
                (output.float().square().sum() + memory.float().amax(-1).sum()).backward()
                yield f"selective, {backend}, {name}", digest(output, memory, *(x.grad for x in inputs))
            if set(options) & {"selection", "strength", "tolerance"}:
                continue
            for x in inputs:
                x.grad = None
            try:
                output = selattn.causal_attention(*inputs, backend=backend, **options)
            except SelattnError:
                yield f"causal, {backend}, {name}", "refused"
                continue
            output.float().square().sum().backward()
            yield f"causal, {backend}, {name}", digest(output, *(x.grad for x in inputs))


def tokens(rows: int, n: int, vocabulary: int) -> Any:
    """[rows, n] token ids, repeated in part, so that there is something to select."""
    import torch

    chance = torch.Generator().manual_seed(2)
    ids = torch.randint(4, vocabulary, (rows, n), generator=chance)
    ids[:, n // 2 :] = ids[:, : n - n // 2]
    return ids


def models(root: Path) -> Iterator[tuple[str, str]]:
    """Logits of the zoo, with and without budgets, and text that it generates."""
    import torch

    import selattn

    for name in TEXT_MODELS:
        model = selattn.SelectiveForCausalLM.from_pretrained(root / "zoo" / name, dtype=torch.float32).eval()
        ids = tokens(2, 200, model.config.vocab_size)
        with torch.no_grad():
            yield f"logits of {name}", digest(model(ids).logits)
            mask = torch.ones_like(ids)
            mask[0, :30] = 0
            yield f"logits of {name}, padded", digest(model(ids, attention_mask=mask).logits[:, 30:])
            for policy in POLICIES:
                if policy == "selective" and name == "standard":
                    continue
                pruned = {"cache_budgets": [8, 24, 50], "cache_policy": policy}
                yield f"logits of {name}, {policy}", digest(model(ids, **pruned).logits)
                text = model.generate(ids[:, :64], max_new_tokens=40, do_sample=False, **pruned)
                yield f"text of {name}, {policy}", digest(text)


def training() -> Iterator[tuple[str, str]]:
    """50 steps with the memory loss."""
    import torch

    import selattn

    torch.manual_seed(3)
    config = selattn.SelectiveConfig.from_d(2, vocab_size=97, max_position_embeddings=64, memory_epsilon=0.1)
    model = selattn.SelectiveForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(50):
        ids = tokens(4, 64, 97).roll(step, -1)
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    yield "50 training steps: losses", digest(*losses)
    yield "50 training steps: weights", digest(*model.state_dict().values())


def search(root: Path) -> Iterator[tuple[str, str]]:
    """The path of one search, on a text of ASCII words that every tokenizer reads alike."""
    sentence = "the old house on the hill was empty and the garden ran wild down to the river where boats were kept"
    words = sentence.split()
    lines = [" ".join(words[(i * 7 + j * (1 + i % 5)) % len(words)] for j in range(180)) for i in range(24)]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(lines) + "\n")
        command = [sys.executable, "-m", "selattn", "prune", str(root / "zoo" / "memory"), "--data", str(text)]
        command += ["--validation", "1", "--context", "128", "--rows", "4", "--report-rows", "4", "--until", "factor=3"]
        command += ["--step", "24"]
        done = subprocess.run(
            [*command, "--out", str(Path(folder) / "out")], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        lines = (Path(folder) / "out" / "path.jsonl").read_text().splitlines()
        path = [{**json.loads(line), "work": None} for line in lines]  # which says how long it took
        yield "search for budgets: its path", hashlib.blake2b(json.dumps(path).encode(), digest_size=12).hexdigest()


def run_list(root: Path) -> dict[str, str]:
    """The whole list in this process."""
    import torch

    torch.set_num_threads(1)
    return dict([*operator(), *models(root), *training(), *search(root)])


def in_checkout(root: Path) -> dict[str, str]:
    """The list in a process whose selattn is that of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--list", str(root)]  # -P: not from this folder
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{root}:\n{done.stderr}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Compare, print what differs, exit with 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="OLD NEW")
    parser.add_argument("--list", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.list:
        print(json.dumps(run_list(arguments.list)))
        return
    if len(arguments.checkouts) != 2:
        parser.error("give two checkouts, OLD and NEW")
    old, new = (in_checkout(path.resolve()) for path in arguments.checkouts)
    differ = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    for name in differ:
        print(f"differs: {name}")
    print(f"{len(old)} results, {len(differ)} differ")
    if arguments.record:
        from selattn.utils.records import write_record

        commits = [
            subprocess.run(["git", "-C", str(p), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
            for p in arguments.checkouts
        ]
        write_record(arguments.record, {"old": commits[0], "new": commits[1], "results": len(old), "differ": differ}, 0)
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
