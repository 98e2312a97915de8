"""How large the explorer's page is, how long it takes to open, and how long to change the layer and the position.

    python benchmarks/explorer.py [--out results/explorer.json] [--shape TOKENS LAYERS]...

Pages as `selattn explore` writes them, with F, S, attention, and when each token leaves for each policy and budget of
the grid: of `zoo:memory-2048` on Python's own documentation. It has three layers; for more, each further three are
those of another text, so that none is stored, or compressed, as a copy of another. It needs playwright and a chromium
(`make test-browser` installs them), and a quiet machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from selattn.data.sources import embedded_documents
from selattn.evaluation.traces import Trace, pack_steps
from selattn.evaluation.traces import trace as trace_of
from selattn.models.loading import load
from selattn.utils.progress import ProgressLine
from selattn.utils.records import write_record
from selattn.views.explorer import Page, grid, page_step, usual_policies

sys.path.insert(0, str(Path(__file__).parents[1]))  # the browser is the tests'
from tests.views.browser import Tab, browser

MODEL = "zoo:memory-2048"
SHAPES = ((512, 12), (2048, 28))
TIMES = 10


def page_of(tokens: int, layers: int) -> Page:
    """A page of so many tokens and layers, with the policies and budgets that a page has."""
    model = load(MODEL)
    count = -(-layers // model.description.layers)
    runs = [(policy, k) for policy in usual_policies(model.description.selects) for k in grid(tokens)]
    step = page_step(tokens, layers)
    found: list[Trace] = []
    with ProgressLine(f"{tokens:,} tokens, {layers} layers", count) as line:
        for text in texts(tokens, count):
            found.append(trace_of(model, text, runs, limit=tokens, step=step))
            assert found[-1].size == tokens
            line.advance(1)
    return Page((stacked(found, layers),))


def texts(tokens: int, count: int) -> list[str]:
    """So many different texts, each of more than so many tokens."""
    letters = 12 * tokens  # more than enough: a token has some three
    whole = ""
    for document in embedded_documents():
        whole += document + "\n\n"
        if len(whole) >= letters * count:
            return [whole[letters * part : letters * (part + 1)] for part in range(count)]
    raise SystemExit(f"there is not enough text for {count} times {tokens:,} tokens")


def stacked(traces: list[Trace], layers: int) -> Trace:
    """One trace whose layers are those of several, under the first one's text."""
    (first, *_) = traces
    packed = [packed for trace in traces for packed in trace.packed][:layers]
    runs = []
    for number, run in enumerate(first.runs):
        at = np.concatenate([trace.evicted_at(number) for trace in traces])[:layers]
        runs.append({**run, "budgets": [run["budgets"][0]] * layers, "evicted_at": pack_steps(at)})
    return dataclasses.replace(first, kinds=["selective"] * layers, packed=packed, runs=runs)


# Changes the state of the pane, moves to a token, and waits until that is painted; seconds.
TIMED = """async ([state, place]) => {
    const began = performance.now();
    Object.assign(explorer.panes[0].state, state);
    await explorer.move(place);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return (performance.now() - began) / 1000;
}"""


def measure(opened: object, page: Page, folder: Path) -> dict[str, float | int]:
    """Bytes, and medians of seconds: of changes without budgets, with those of the grid, and of budgets themselves."""
    path = page.save(folder / "page.html")
    (trace,) = page.traces
    tab = Tab(opened, path.as_uri())
    end, middle = trace.size - 1, grid(trace.size)[len(grid(trace.size)) // 2]

    def timed(**state: object) -> float:
        place = state.pop("place", end)
        return float(tab.page.evaluate(TIMED, [state, place]))

    def layers() -> float:
        some = range(1, trace.layers, max(1, trace.layers // TIMES))
        return statistics.median([timed(layer=layer) for layer in some])

    def places() -> float:
        return statistics.median([timed(layer=0, place=end * number // TIMES) for number in range(1, TIMES)])

    found = {
        "tokens": trace.size,
        "layers": trace.layers,
        "runs": len(trace.runs),
        "bytes": path.stat().st_size,
        "step": trace.step,
        "open_seconds": tab.page.evaluate("() => explorer.opened"),
        "layer_change_seconds": layers(),
        "position_change_seconds": places(),
    }
    tab.page.evaluate(
        "([policy, budgets]) => explorer.panes[0].change({ policy, budgets })", ["selective", [middle] * trace.layers]
    )
    stops = tab.page.evaluate("() => explorer.panes[0].subject.stops('selective')")
    found |= {
        "layer_change_under_budgets_seconds": layers(),
        "position_change_under_budgets_seconds": places(),
        "budget_change_seconds": statistics.median([timed(budgets=[k] * trace.layers, layer=0) for k in stops]),
    }
    tab.close()
    return found


def main() -> None:
    """Measure each shape and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/explorer.json"))
    parser.add_argument("--shape", type=int, nargs=2, action="append", metavar=("TOKENS", "LAYERS"), default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, browser() as opened:
        rows = [measure(opened, page_of(*shape), Path(folder)) for shape in args.shape or SHAPES]
    for row in rows:
        print(row)
    print(write_record(args.out, {"rows": rows}, None))


if __name__ == "__main__":
    main()
