"""How time grows from 4,096 to 16,384 tokens, for us and for PyTorch's flash attention: `python benchmarks/growth.py`.

The number of pairs grows 16 times. A round is one long call of each rival and, half before and half after, 16 short
ones in turn, which take about as long: other load on the machine affects both lengths alike. (By medians or fastest
calls the short ones would look better than they are: they fit into quiet moments that a long one cannot find.) The
interval is that of a bootstrap over the rounds, 95%. Nothing is forgotten: the most work possible.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from selattn.evaluation import speed
from selattn.evaluation.speed import RIVAL, Shape
from selattn.utils import records

SHORT, LONG = 4096, 16_384
CALLS = (LONG // SHORT) ** 2  # short ones to a long one
NAMES = (RIVAL, "cpu")
Round = dict[tuple[str, int], float]  # seconds by rival and length, of all its calls of that length


def one_round(inputs: dict[int, Any], backward: bool, names: tuple[str, ...]) -> Round:
    """Run all calls of a round."""
    found: Round = {(name, n): 0.0 for name in names for n in inputs}
    for n, times in ((SHORT, CALLS // 2), (LONG, 1), (SHORT, CALLS // 2)):
        for _ in range(times):
            for name in names:
                began = time.perf_counter()
                speed.run(name, inputs[n], backward)
                found[name, n] += time.perf_counter() - began
    return found


def summary(rounds: list[Round]) -> dict[str, float]:
    """Growth of each rival, and ratios of ours to the other, from the sums over rounds."""
    total = {key: sum(each[key] for each in rounds) for key in rounds[0]}
    growth = {name: CALLS * total[name, LONG] / total[name, SHORT] for name in NAMES}
    return {
        **{f"growth_{name}": growth[name] for name in NAMES},
        "growth_ratio": growth["cpu"] / growth[RIVAL],
        "ratio_short": total["cpu", SHORT] / total[RIVAL, SHORT],
        "ratio_long": total["cpu", LONG] / total[RIVAL, LONG],
    }


def interval(rounds: list[Round], seed: int, samples: int = 4000) -> tuple[float, float]:
    """The 95% interval of the ratio of growths, by a bootstrap over the rounds."""
    chance = random.Random(seed)
    found = sorted(summary(chance.choices(rounds, k=len(rounds)))["growth_ratio"] for _ in range(samples))
    return found[samples // 40], found[-samples // 40 - 1]


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of about a minute each (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/growth.json")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds must be at least 2: one round alone has no interval")
    speed.check("cpu", speed.inputs(speed.CHECK_LENGTH, Shape(), False, args.seed))
    inputs = {n: speed.inputs(n, Shape(), False, args.seed) for n in (SHORT, LONG)}
    found: dict[str, Any] = {"shape": {**Shape()._asdict(), "dtype": "float32"}, "short": SHORT, "long": LONG}
    columns = ("flash", "cpu", "ratio", "95%", f"{SHORT:,}", f"{LONG:,}")
    table = Table("", *columns, title=f"time at {LONG:,} tokens over time at {SHORT:,}")
    table.caption = "the last two columns: our time over flash attention's, at that length"
    for backward, kind in ((False, "forward"), (True, "forward + backward")):
        one_round(inputs, backward, NAMES)  # for warming up
        turns = track(range(args.rounds), kind)
        rounds = [one_round(inputs, backward, NAMES if turn % 2 else NAMES[::-1]) for turn in turns]
        low, high = interval(rounds, args.seed)
        row = {**summary(rounds), "low": low, "high": high}
        row["rounds"] = [{f"{name} {n}": x for (name, n), x in each.items()} for each in rounds]
        found[kind] = row
        ratio, at_short, at_long = (row[name] for name in ("growth_ratio", "ratio_short", "ratio_long"))
        growths = (f"{row[f'growth_{name}']:.2f}" for name in NAMES)
        table.add_row(kind, *growths, f"{ratio:.3f}", f"{low:.2f} to {high:.2f}", f"{at_short:.2f}", f"{at_long:.2f}")
    Console().print(table)
    print(records.write_record(args.out, found, seed=args.seed))


if __name__ == "__main__":
    main()
