"""Whether Ctrl-C ends a command at any time: `python -m tools.interrupts` interrupts one at 200 random moments.

Each time the command starts in a process of its own, gets one SIGINT, and has to end with code 130 and one line. The
table says how many did, how long it took, and what else was written. Further words are another command:
`python -m tools.interrupts --tries 50 eval zoo:selective --speed`.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import subprocess
import sys
import time

COMMAND = ["generate", "zoo:selective", "--prompt", "hi", "--max-new-tokens", "100000"]
PATIENCE = 60.0  # seconds after which an interrupt counts as lost, on a busy machine, too
SAID = "\nselattn: interrupted\n"


def interrupt(command: list[str], delay: float) -> tuple[str, float]:
    """How the command ended, and after how many seconds; it is killed if it does not."""
    process = subprocess.Popen(
        [sys.executable, "-m", "selattn", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    time.sleep(delay)
    if process.poll() is not None:
        return "ended before", 0.0
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    try:
        _, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "LOST", PATIENCE
    seconds = time.monotonic() - began
    if process.returncode == 130:
        return "130" if err.endswith(SAID) and err.count("\n") < 4 else f"130, with {err.strip()[-200:]!r}", seconds
    # Python itself, before any line of ours has run: a shell shows 130 for it.
    early = process.returncode == -signal.SIGINT
    return "while Python starts" if early else f"{process.returncode}: {err.strip()[-200:]!r}", seconds


def main() -> int:
    """Print a line for each way to end; 1 if an interrupt was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--after", type=float, nargs=2, default=(0.5, 6.0), metavar=("FROM", "TO"), help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    draw, found = random.Random(args.seed), collections.defaultdict[str, list[float]](list)
    for _ in range(args.tries):
        how, seconds = interrupt(args.command or COMMAND, draw.uniform(*args.after))
        found[how].append(seconds)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{'times':>5}  {'median s':>8}  {'longest s':>9}  how it ended")
    for how, each in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(each):5}  {sorted(each)[len(each) // 2]:8.2f}  {max(each):9.2f}  {how}")
    return int("LOST" in found)


if __name__ == "__main__":
    sys.exit(main())
