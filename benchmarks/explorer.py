"""How large the explorer's page is, how long it takes to open, and how long to change the layer and the position.

    python benchmarks/explorer.py [--out results/explorer.json] [--shape TOKENS LAYERS]...

Pages of real F: `zoo:memory-2048` on Python's own documentation, its layers repeated to the number wanted. They have F,
S and attention, but no evictions, which `selattn explore` adds for each policy and budget. It needs playwright and
a chromium (`make test-browser` installs them), and a quiet machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from pathlib import Path

from selattn.data.embedded import embedded_documents
from selattn.report.explorer import Page
from selattn.report.explorer.page import COARSE, LARGE
from selattn.report.trace import STEP
from selattn.report.trace import trace as trace_of
from selattn.utils.records import write_record
from tests.report.browser import Tab, browser

SHAPES = ((512, 12), (2048, 28))
TIMES = 10


def page_of(tokens: int, layers: int) -> Page:
    """A page of so many tokens and layers."""
    text = "\n\n".join(document for document, _ in zip(embedded_documents(), range(40), strict=False))
    step = STEP if tokens * (tokens + 1) // 2 * layers < LARGE else COARSE  # as a page of so many has it
    trace = trace_of("zoo:memory-2048", text, limit=tokens, step=step)
    assert trace.size == tokens
    packed = [trace.packed[layer % trace.layers] for layer in range(layers)]
    return Page((dataclasses.replace(trace, kinds=["selective"] * layers, packed=packed),))


def measure(opened: object, page: Page, folder: Path) -> dict[str, float | int]:
    """Bytes, and medians of seconds."""
    path = page.save(folder / "page.html")
    (trace,) = page.traces
    tab = Tab(opened, path.as_uri())
    timed = """async ([layer, place]) => {
        const began = performance.now();
        explorer.panes[0].state.layer = layer;
        await explorer.move(place);
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        return (performance.now() - began) / 1000;
    }"""
    end = trace.size - 1
    layers = [tab.page.evaluate(timed, [layer, end]) for layer in range(1, trace.layers, max(1, trace.layers // TIMES))]
    places = [tab.page.evaluate(timed, [0, end * number // TIMES]) for number in range(TIMES)][1:]
    found = {
        "tokens": trace.size,
        "layers": trace.layers,
        "bytes": path.stat().st_size,
        "step": trace.step,
        "open_seconds": tab.page.evaluate("() => explorer.opened"),
        "layer_change_seconds": statistics.median(layers),
        "position_change_seconds": statistics.median(places),
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
