"""The explorer: F, attention and evictions on a text, as one HTML file that needs nothing but a browser.

For each policy and for a grid of budgets, the same in every layer, the page holds when each token is evicted, from
forwards with these budgets in force: exact. Other combinations are replayed from F in the browser, and marked
approximate.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from selattn.cache import Budgets, make_policy
from selattn.errors import SelattnError
from selattn.evaluation.traces import STEP, Model, Run, Trace, prepared, trace
from selattn.utils.files import write_text
from selattn.utils.progress import Progress

MOST_TOKENS, MOST_LAYERS = 2048, 28
LARGE, COARSE = 8_000_000, 1 / 8  # so many entries of F and more are rounded more, or the page would be too large
MOST_BYTES = 160_000_000
SCRIPTS = ("data.js", "pane.js", "main.js")
_HERE = Path(__file__).parent
_PLACE = re.compile(r"/\*\{(\w+)\}\*/")

_BLOB = '<script type="text/plain" id="blob-{name}">{data}</script>'


@dataclass(frozen=True)
class Page:
    """A page; a notebook shows it."""

    traces: tuple[Trace, ...]  # a model each
    view: str = ""  # that it opens with if its address names none: as in the address bar behind the #

    def html(self, serve: bool = False, view: str | None = None) -> str:
        """The whole file; with `serve` it has a place to type new text, for a server."""
        header, blobs = self.parts(serve)
        header["view"] = self.view if view is None else view
        held = {
            **_static(),
            "header": json.dumps(header).replace("<", "\\u003c"),  # no text of a user's can end the element
            "blobs": "\n".join(_BLOB.format(name=name, data=data) for name, data in blobs.items()),
        }
        return _PLACE.sub(lambda place: held[place[1]], (_HERE / "page.html").read_text("utf-8"))

    def parts(self, serve: bool = False) -> tuple[dict[str, Any], dict[str, str]]:
        """The header of the page, and the packed numbers by name."""
        blobs: dict[str, str] = {}
        subjects = []
        for number, found in enumerate(self.traces):
            for layer, packed in enumerate(found.packed):
                blobs[f"{number}-w{layer}"] = packed["weights"]["data"]
                if packed["f"] is not None:
                    blobs[f"{number}-f{layer}"] = packed["f"]["data"]
            for run, done in enumerate(found.runs):
                blobs[f"{number}-e{run}"] = done["evicted_at"]
            subjects.append(
                {
                    **{name: getattr(found, name) for name in ("model", "tokens", "kinds", "shift", "cut_from")},
                    "f": [None if packed["f"] is None else packed["f"]["step"] for packed in found.packed],
                    "runs": [{key: run[key] for key in ("policy", "budgets", "per_head")} for run in found.runs],
                }
            )
        size = len(json.dumps(subjects)) + sum(map(len, _static().values()))
        size += sum(len(_BLOB) + len(name) + len(data) for name, data in blobs.items())
        if size > MOST_BYTES:
            raise SelattnError(
                f"the page would have {size / 1e6:.0f} MB, and {MOST_BYTES / 1e6:.0f} is the most: show fewer tokens"
            )
        return {"subjects": subjects, "serve": serve, "bytes": size, "view": self.view}, blobs

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all."""
        path = Path(path)
        write_text(path, self.html())
        return path

    def frame(self, view: str | None = None, height: int = 720) -> str:
        """An element for another page: a frame, which is cut off from the page around it."""
        inside = html.escape(self.html(view=view), quote=True)
        return (
            f'<iframe srcdoc="{inside}" sandbox="allow-scripts" title="What is forgotten" '
            f'style="width: 100%; height: {height}px; border: 1px solid #ccc"></iframe>'
        )

    def _repr_html_(self) -> str:
        return self.frame()


@cache
def _static() -> dict[str, str]:
    """The same in every page."""
    return {
        "theme": (_HERE.parent / "theme.css").read_text("utf-8"),
        "style": (_HERE / "style.css").read_text("utf-8"),
        "script": "\n".join((_HERE / name).read_text("utf-8") for name in SCRIPTS),
    }


def explore(
    model: Model | Sequence[Model],
    text: str,
    *,
    policies: Sequence[str] | None = None,
    budgets: Sequence[int] | None = None,
    also: Sequence[Run] = (),
    limit: int | None = None,
    view: str = "",
    progress: Progress | None = None,
) -> Page:
    """Run models on a text, with and without budgets, and make the page of it.

    Args:
        model: a folder, a run's folder, zoo:NAME or what was loaded of one; or two of them, to be compared.
        text: the text itself.
        policies: by default `selective` where a model selects, else `tova`, and H2O and Window+4.
        budgets: the grid, K the same in every layer; by default powers of 2 below the number of tokens.
        also: further budgets that differ between layers, each with its policy.
        limit: the most tokens to read.
        view: which view it opens with: `w=h2o&k=32` has H2O evict with 32 tokens in each layer.
        progress: shows the progress; None shows nothing.
    """
    models: Sequence[Model] = list(model) if isinstance(model, list | tuple) else [model]  # type: ignore[list-item]
    if not 1 <= len(models) <= 2:
        raise SelattnError(f"one model is shown, or two are compared, not {len(models)}")
    shown = tuple(_shown(each, text, policies, budgets, also, limit, progress or Progress()) for each in models)
    return Page(shown, view)


def check_size(tokens: int, layers: int) -> None:
    """Raise for more than the page can show without stutter."""
    if tokens > MOST_TOKENS or layers > MOST_LAYERS:
        raise SelattnError(
            f"{tokens:,} tokens and {layers} layers are more than a page shows ({MOST_TOKENS:,} and {MOST_LAYERS}): "
            "give --tokens, or a smaller model"
        )


def usual_policies(selects: bool) -> list[str]:
    """The default policies: the model's own if it selects, and two that others use."""
    return ["selective" if selects else "tova", "h2o", "window+4"]


def page_step(tokens: int, layers: int) -> float:
    """F is rounded to multiples of this: coarser where the page would be too large."""
    return STEP if tokens * (tokens + 1) // 2 * layers < LARGE else COARSE


def grid(size: int) -> list[int]:
    """Powers of 2 from 2 on, below the number of tokens."""
    return [2**power for power in range(1, size.bit_length()) if 2**power < size]


def _shown(
    model: Model,
    text: str,
    policies: Sequence[str] | None,
    budgets: Sequence[int] | None,
    also: Sequence[Run],
    limit: int | None,
    progress: Progress,
) -> Trace:
    loaded, name, words = prepared(model, text)
    about = loaded.description
    size = min(len(words.ids), limit or about.context, about.context)
    check_size(size, about.layers)
    chosen = policies or usual_policies(about.selects)
    runs: list[Run] = [(make_policy(each).name, k) for each in chosen for k in budgets or grid(size)]
    runs += [(policy, Budgets.of(k) or k) for policy, k in also]
    progress.begin(len(runs), f"{name}: forwards with budgets")

    def told() -> Iterator[Run]:
        for run in runs:
            yield run
            progress.advance()

    found = trace(loaded, words, told(), limit=limit, step=page_step(size, about.layers), name=name)
    progress.end()
    return found
