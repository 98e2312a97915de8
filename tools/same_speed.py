"""Whether two versions of selattn are equally fast: `python -m tools.same_speed OLD NEW` prints the ratio of each case.

OLD and NEW are checkouts, each with its compiled library in it. Three processes take turns, one at a time: OLD, NEW,
and OLD once more, which shows how much a version differs from itself on this machine. In a round each of them does the
same work, in an order that rotates from round to round. Ratios are taken within a round; the table shows their median
over rounds with its 95% interval. A case holds if NEW takes at most 3% longer, or no longer than OLD against itself
(the end of that interval). `--record FILE` keeps the result; the exit code is 1 if a case does not hold. On a busy
machine `--clock cpu` counts the seconds of the process alone.

    attention     standard and selective, at 128 and 1,024 tokens, forward and with the backward pass
    training      one step of a small model with the memory loss, AdamW included
    decoding      tokens of `generate()` with budgets, one text and eight at once
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ALLOWED = 1.03
DRAWS = 2000  # of the rounds, for the interval


def attention(tiny: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls of the operator, as a user makes them."""
    import torch

    import selattn

    for n in (32, 48) if tiny else (128, 1024):
        q, k, v = (torch.randn(1, 8, n, 64, generator=torch.Generator().manual_seed(i)) for i in range(3))
        with_grad = [x.clone().requires_grad_() for x in (q, k, v)]
        for kind in ("causal", "selective"):
            call: Any = getattr(selattn, f"{kind}_attention")
            yield f"{kind} attention, {n} tokens", lambda call=call, x=(q, k, v): call(*x)
            yield (
                f"{kind} attention, {n} tokens, with backward",
                lambda call=call, x=with_grad: call(*x).sum().backward(),
            )


def model(tiny: bool, **settings: Any) -> Any:
    """A model with random weights, the same in all processes."""
    import torch

    import selattn

    torch.manual_seed(0)
    d = 1 if tiny else 4
    config = selattn.SelectiveConfig.from_d(d, vocab_size=512, max_position_embeddings=512, **settings)
    return selattn.SelectiveForCausalLM(config)


def training(tiny: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Steps of training."""
    import torch

    learner = model(tiny, memory_epsilon=0.1).train()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-4)
    n = 32 if tiny else 512
    ids = torch.randint(4, 512, (4, n), generator=torch.Generator().manual_seed(1))

    def step() -> None:
        learner(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    yield f"training step, 4 x {n} tokens", step


def decoding(tiny: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Tokens of `generate()`."""
    import torch

    writer = model(tiny).eval()
    prompt, new = (8, 4) if tiny else (128, 64)
    how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "cache_budgets": 32, "pad_token_id": 0}
    for rows in (1, 8):
        ids = torch.randint(4, 512, (rows, prompt), generator=torch.Generator().manual_seed(2))
        mask = torch.ones_like(ids)
        yield (
            f"decoding, batch {rows}, {new} tokens",
            lambda ids=ids, mask=mask: writer.generate(ids, attention_mask=mask, **how),
        )


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def serve(threads: int, tiny: bool, clock: Callable[[], float]) -> None:
    """A process of one version: names of the cases, then seconds for each line `CASE CALLS` that comes in."""
    import torch

    torch.set_num_threads(threads)
    cases = dict([*attention(tiny), *training(tiny), *decoding(tiny)])
    print(json.dumps(list(cases)), flush=True)
    names = list(cases)
    for line in sys.stdin:
        number, calls = map(int, line.split())
        call = cases[names[number]]
        begin = clock()
        for _ in range(calls):
            call()
        print(clock() - begin, flush=True)


class Version:
    """A process whose selattn is that of a checkout. It waits while it is not its turn."""

    def __init__(self, root: Path, how: Sequence[str], threads: int, folder: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
        environment |= {"OMP_WAIT_POLICY": "passive", "TRANSFORMERS_VERBOSITY": "error"}
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--serve", *how]  # -P: not from here
        self.root = root
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.cases: list[str] = json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.root} has ended; what it said stands above")
        return line

    def seconds(self, case: int, calls: int) -> float:
        """How long so many calls of a case take."""
        assert self.process.stdin is not None
        print(case, calls, file=self.process.stdin, flush=True)
        return float(self._line())

    def end(self) -> None:
        """Let the process go."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and its 95% interval by drawing from the rounds again and again."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(DRAWS))
    return statistics.median(values), medians[int(0.025 * DRAWS)], medians[int(0.975 * DRAWS) - 1]


def compare(versions: Sequence[Version], case: int, rounds: int, seconds: float) -> dict[str, Any]:
    """One case: rounds in which OLD, NEW and OLD again take turns, each for about so many seconds."""
    once = min(min(version.seconds(case, 1) for version in versions) for _ in range(2))  # warm, too
    calls = max(1, round(seconds / once))
    times: list[list[float]] = []
    for number in range(rounds):
        turn = [(number + i) % 3 for i in range(3)]
        took = {who: versions[who].seconds(case, calls) for who in turn}
        times.append([took[who] / calls for who in range(3)])
    new, low, high = interval([row[1] / row[0] for row in times])
    itself, itself_low, itself_high = interval([row[2] / row[0] for row in times])
    return {
        "case": versions[0].cases[case],
        "calls": calls,
        "old_ms": 1000 * statistics.median(row[0] for row in times),
        "new_ms": 1000 * statistics.median(row[1] for row in times),
        "ratio": new,
        "interval": [low, high],
        "itself": itself,
        "itself_interval": [itself_low, itself_high],
        "holds": new <= max(ALLOWED, itself_high),
    }


def commit_of(root: Path) -> str:
    """The commit of a checkout."""
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(words: Sequence[str] | None = None) -> int:
    """Compare two checkouts and print a line for each case; 1 if one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="OLD NEW")
    parser.add_argument("--rounds", type=int, default=21, help="of the three processes (default: 21)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of one turn (default: 0.3)")
    parser.add_argument("--threads", type=int, default=1, help="of each process (default: 1)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what is counted (default: wall)")
    parser.add_argument("--only", default="", metavar="WORD", help="the cases whose name has it")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the tool itself")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.serve:
        serve(arguments.threads, arguments.tiny, CLOCKS[arguments.clock])
        return 0
    if len(arguments.checkouts) != 2:
        parser.error("give two checkouts, OLD and NEW")
    if arguments.rounds < 2 or arguments.seconds <= 0:
        parser.error("it takes at least 2 rounds, and a turn some time")
    old, new = (path.resolve() for path in arguments.checkouts)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        how = ["--threads", str(arguments.threads), "--clock", arguments.clock, *(["--tiny"] if arguments.tiny else [])]
        versions = [Version(root, how, arguments.threads, folder) for root in (old, new, old)]
        if any(version.cases != versions[0].cases for version in versions):
            raise SystemExit("the versions have different cases")
        for case, name in enumerate(versions[0].cases):
            if arguments.only not in name:
                continue
            one = compare(versions, case, arguments.rounds, arguments.seconds)
            found.append(one)
            print(
                f"{name:45} {one['old_ms']:9.3f} -> {one['new_ms']:9.3f} ms  {one['ratio']:.3f} "
                f"({one['interval'][0]:.3f} to {one['interval'][1]:.3f}), old against itself "
                f"{one['itself']:.3f} ({one['itself_interval'][0]:.3f} to {one['itself_interval'][1]:.3f})"
                f"{'' if one['holds'] else '  SLOWER'}",
                flush=True,
            )
        for version in versions:
            version.end()
    if not found:
        parser.error(f"no case has {arguments.only!r} in its name")
    slower = [one["case"] for one in found if not one["holds"]]
    print(f"{len(found)} cases, {len(slower)} slower")
    if arguments.record:
        from selattn.utils.records import write_record

        about = {"old": commit_of(old), "new": commit_of(new), "threads": arguments.threads, "tiny": arguments.tiny}
        about |= {"clock": arguments.clock}
        write_record(arguments.record, {**about, "rounds": arguments.rounds, "cases": found}, 0)
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
