"""`selattn explore`: which token masked which, and when it was evicted, as one page for the browser.

The page is one file that needs no network: pick a layer and a position, click a token, drag the budgets, play the
sequence, compare two models or policies. --serve shows it on this machine only, with a place for typing new text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from selattn.evaluation import Subject
    from selattn.evaluation.traces import Run
    from selattn.views.explorer import Page


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn explore` and its options to the command line."""
    parser = _options.add_command(subparsers, "explore", "see what is forgotten, in the browser", __doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL[@BUDGETS[:POLICY]]", help="one, or two to be compared")
    parser.add_argument(
        "--text",
        type=_options.name,
        metavar="FILE",
        help="a file, 'paper', or 'sample' (the model's own, if it has one)",
    )
    _options.file(parser, "--out", "write the page there")
    parser.add_argument("--policies", nargs="+", metavar="POLICY", help="to compare (default: selective h2o window+4)")
    _options.number(
        parser, "--budgets", "the same in each layer (default: powers of 2)", least=2, metavar="K", nargs="+"
    )
    _options.number(parser, "--tokens", "the most to read (default: the model's context size)", least=2)
    parser.add_argument("--serve", action="store_true", help="serve it on localhost, for typing new text")
    parser.add_argument(
        "--port", type=_options.whole(0, 2**16 - 1), default=0, metavar="N", help="of --serve (default: any free one)"
    )


def run(args: argparse.Namespace) -> int:
    """Make the page, write it or serve it."""
    if (args.out is None) == (not args.serve):
        raise SelattnError("say where the page goes: --out FILE, or --serve")
    if not args.serve:
        _options.refuse(args, ["port"], "it belongs to --serve")

    from selattn.evaluation.subjects import Subject
    from selattn.evaluation.traces import given_text
    from selattn.utils.records import check_output
    from selattn.utils.tables import byte_size

    check_output(args.out)
    read = _reader(args)
    page = read(given_text(args.text, Subject.parse(args.models[0]).loaded))
    if args.serve:
        _serve(page, read, args.port)
        return 0
    path = page.save(args.out)
    print(f"{path} ({byte_size(path.stat().st_size)})")
    return 0


def _reader(args: argparse.Namespace) -> Callable[[str], Page]:
    """A function from a text to its page; the models are loaded once."""
    from selattn.cache import make_policy
    from selattn.evaluation.subjects import Subject
    from selattn.utils.progress import Shown
    from selattn.views.explorer import explore

    subjects = [Subject.parse(name) for name in args.models]
    also: list[Run] = [
        (make_policy(each.description.policy), each.budgets) for each in subjects if each.budgets is not None
    ]
    models, view = [each.loaded for each in subjects], _view(subjects)

    def read(text: str) -> Page:
        how = {"policies": args.policies, "budgets": args.budgets, "also": also, "limit": args.tokens, "view": view}
        return explore(models, text, **how, progress=Shown())

    return read


def _view(subjects: Sequence[Subject]) -> str:
    """The view that the page opens with: the given budgets, and both panes if the second model has some."""
    from selattn.cache import make_policy

    parts: dict[str, str | int] = {}
    for pane, each in zip(("", "2"), subjects, strict=False):
        if each.budgets is not None:
            k = ",".join(map(str, each.budgets.for_layers(each.description.layers)))
            parts |= {f"w{pane}": make_policy(each.description.policy).name, f"k{pane}": k}
    if "k2" in parts:
        parts |= {"m2": 1, "two": 1}
    return urlencode(parts)


def _serve(page: Page, read: Callable[[str], Page], port: int) -> None:
    from selattn.views.explorer.server import Server

    with Server(page, read, port) as server:
        print(f"{server.url} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print(file=sys.stderr)
