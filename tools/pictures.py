"""Draw all pictures of the documents again, each by the command that `docs/pictures.md` shows for it.

    python -m tools.pictures [NAME ...] [--second MODEL]

Figures are drawn by `selattn plot` from the models of the zoo and the records in `results/`, two from records of
the lab, and the explorer is photographed in a headless chromium (`make test-browser` installs one). They go
to `docs/images/`, and where they are small, so do the records that they are drawn from.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
import tempfile
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from lab.engine.records import Reproduction
from lab.experiments import find_experiment
from selattn.cli.main import main as selattn
from selattn.errors import SelattnError, unknown
from selattn.evaluation.traces import PASSAGE
from selattn.utils.files import write_bytes, write_text
from selattn.utils.records import read_body
from selattn.views.plot.style import write_figure
from tests.views.browser import Tab, browser

ROOT = Path(__file__).parents[1]
IMAGES = "docs/images"
LARGEST = 150_000  # bytes of a picture, so that a clone stays small
COLORS = 256  # that a picture is reduced to where it is larger than that: they have few, but for soft edges

ASSIGNMENT = ("zoo:variable-assignment-selective", "zoo:variable-assignment-standard")
SEARCH = "results/prune/memory-seed0.json"
# Long documents that no model of the zoo was trained on.
TEXT = f"{IMAGES}/records/passage.txt"  # the beginning of the paper's own example
SECOND = f"{IMAGES}/records/mean-second.json"  # of another training run with the recipe of zoo:selective
MANY = "--text embedded --split train --rows 100 --tokens 256"


def plots() -> dict[str, str]:
    """The options of `selattn plot` by the name of the picture."""
    kept = f"{IMAGES}/records"
    return {
        "tokens": f"tokens {ASSIGNMENT[0]} --position 33 --record {kept}/assignment.json",
        "attention": f"attention {' '.join(ASSIGNMENT)}",
        "masking": "masking zoo:selective --text paper",
        "words": f"words zoo:selective --text {TEXT} --record {kept}/words.json",
        "kept": "kept zoo:selective@64 --text paper",
        "masking-mean": f"masking-mean zoo:selective {MANY} --record {kept}/mean.json",
        "stability": f"stability {kept}/mean.json {SECOND}",
        "search": f"search {SEARCH} --title 'A search for budgets: selective attention with the memory loss, seed 0'",
        "tradeoff": "tradeoff results/tradeoff.json",
        "curves": "curves results/lm_comparison.json",
        "scaling": "scaling zoo:standard zoo:selective zoo:memory zoo:memory-2048",
    }


# Figures of the lab's experiments, drawn again from their records.
REPRODUCED = ("course",)
# Views of the explorer, as its address bar has them, with the width, the height and the theme of the window.
EXPLORER = f"explore zoo:selective --text {TEXT} --policies selective h2o --budgets 32 64"
VIEWS = {
    "explorer": ("#l=2&p=9999&w=selective&k=64&t=150&two=1&l2=2&w2=h2o&k2=64", 1180, 900, "light"),
    "explorer-dark": ("#l=2&p=9999&w=selective&k=64&t=150", 1180, 620, "dark"),
    "explorer-phone": ("#l=2&p=9999&w=selective&k=64", 390, 844, "light"),
}


def main() -> int:
    """Draw the named pictures, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join((*plots(), *REPRODUCED, *VIEWS))} (default: all)"
    )
    parser.add_argument(
        "--second",
        metavar="MODEL",
        help="compared with zoo:selective in stability (default: the run of the stored record)",
    )
    args = parser.parse_args()
    os.chdir(ROOT)
    known = plots()
    for name in args.names:
        if name not in (*known, *REPRODUCED, *VIEWS):
            raise SystemExit(unknown("picture", name, [*known, *REPRODUCED, *VIEWS]))
    wanted = args.names or [*known, *REPRODUCED, *VIEWS]
    write_text(ROOT / TEXT, PASSAGE)
    if args.second is not None:
        with tempfile.TemporaryDirectory() as folder:
            run(f"plot masking-mean {args.second} {MANY} --record {SECOND} --out {folder}/mean.png")
    for name in wanted:
        if name in known:
            run(f"plot {known[name]} --out {IMAGES}/{name}.png")
        if name in REPRODUCED:
            draw_again(name)
    views = [name for name in wanted if name in VIEWS]
    if views:
        photograph(views)
    for name in wanted:
        shrink(ROOT / IMAGES / f"{name}.png")
    return 0


def draw_again(name: str) -> None:
    """The figure of an experiment, from its record."""
    draw = find_experiment(name).figure
    assert draw is not None
    figure = draw(read_body(ROOT / f"results/reproduce/laptop/{name}.json", Reproduction))
    assert isinstance(figure, Figure)
    write_figure(figure, ROOT / IMAGES / f"{name}.png")


def run(words: str) -> None:
    """One command of `selattn`, as a user would type it."""
    print(f"selattn {words}", flush=True)
    sys.argv = ["selattn", *shlex.split(words)]  # which the record names as its command
    if selattn(sys.argv[1:]) != 0:
        raise SystemExit(f"not made: selattn {words}")


def photograph(names: list[str]) -> None:
    """Views of one page, in a browser that reaches nothing but this file."""
    with tempfile.TemporaryDirectory() as folder, browser() as opened:
        page = Path(folder) / "page.html"
        run(f"{EXPLORER} --out {page}")
        for name in names:
            view, width, height, theme = VIEWS[name]
            tab = Tab(opened, page.as_uri() + view, width=width, height=height, color_scheme=theme)
            tab.page.screenshot(path=ROOT / IMAGES / f"{name}.png")
            tab.close()


def shrink(path: Path) -> None:
    """Reduce the colors of a PNG that is too large; refuse one that is still too large."""
    if path.stat().st_size > LARGEST:
        held = io.BytesIO()
        with Image.open(path) as picture:
            # By how much of the picture has a color, so that large pale areas keep theirs.
            few = {"method": Image.Quantize.MEDIANCUT, "kmeans": 3, "dither": Image.Dither.NONE}
            small = picture.convert("RGB").quantize(COLORS, **few)
            small.save(held, "png", optimize=True, dpi=picture.info.get("dpi", (160, 160)))
        write_bytes(path, held.getvalue())
    size = path.stat().st_size
    if size > LARGEST:
        raise SelattnError(f"{path} has {size:,} bytes, and {LARGEST:,} are the most")
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
