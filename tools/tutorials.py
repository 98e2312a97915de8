"""The tutorials in docs/tutorials: Python scripts whose cells begin with `# %%`, as pages and as notebooks.

    python -m tools.tutorials runs/tutorials    # writes a notebook of each, with what its cells print and draw

VS Code, PyCharm, Spyder and jupytext open the scripts as notebooks, too. The site has both (tools/site.py).
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import linecache
from pathlib import Path
from typing import Any, NamedTuple

TUTORIALS = Path(__file__).parents[1] / "docs/tutorials"


class Cell(NamedTuple):
    """Markdown, or code with what it has printed and drawn (PNG)."""

    kind: str
    text: str
    printed: str = ""
    figures: tuple[bytes, ...] = ()


def cells(source: str) -> list[Cell]:
    """A script in the percent format: `# %%` begins code, `# %% [markdown]` begins comments that are Markdown."""
    found = []
    for part in ("\n" + source).split("\n# %%")[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            found.append(Cell("markdown", "\n".join(lines)))
        else:
            found.append(Cell("code", body.strip()))
    return found


def run(path: Path) -> list[Cell]:
    """The cells of a tutorial after running them in order, in one namespace, as a notebook does."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    return [_run(cell, f"{path}[{i}]", namespace) for i, cell in enumerate(cells(path.read_text()))]


def _run(cell: Cell, name: str, namespace: dict[str, Any]) -> Cell:
    """The value of a last expression is shown: a figure is drawn, anything else but None is printed."""
    if cell.kind != "code":
        return cell
    linecache.cache[name] = (len(cell.text), None, cell.text.splitlines(keepends=True), name)  # for tracebacks
    body = ast.parse(cell.text, name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    figures = []
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), namespace)
        if hasattr(value, "savefig"):
            png = io.BytesIO()
            value.savefig(png, format="png", dpi=150)
            figures.append(png.getvalue())
        elif value is not None:
            print(repr(value))
    return cell._replace(printed=printed.getvalue(), figures=tuple(figures))


def markdown(done: list[Cell], stem: str) -> tuple[str, dict[str, bytes]]:
    """A page, and its pictures by name."""
    parts, pictures = [], {}
    for cell in done:
        parts.append(cell.text if cell.kind == "markdown" else f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        for figure in cell.figures:
            name = f"{stem}-{len(pictures) + 1}.png"
            pictures[name] = figure
            parts.append(f"![What this cell draws]({name})")
    return "\n\n".join(parts) + "\n", pictures


def notebook(done: list[Cell]) -> str:
    """The same as a Jupyter notebook (nbformat 4.5)."""
    written = [{"id": f"cell-{i}", "metadata": {}, **_notebook_cell(cell)} for i, cell in enumerate(done)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": written, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


def _notebook_cell(cell: Cell) -> dict[str, Any]:
    source = cell.text.splitlines(keepends=True)
    if cell.kind == "markdown":
        return {"cell_type": "markdown", "source": source}
    outputs: list[dict[str, Any]] = []
    if cell.printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": cell.printed.splitlines(keepends=True)})
    for figure in cell.figures:
        data = {"image/png": base64.b64encode(figure).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return {"cell_type": "code", "source": source, "execution_count": None, "outputs": outputs}


def main(argv: list[str] | None = None) -> None:
    """Write the notebooks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the notebooks go")
    parser.add_argument("--clean", action="store_true", help="run nothing: notebooks without outputs")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(TUTORIALS.glob("*.py")):
        done = cells(path.read_text()) if args.clean else run(path)
        (args.folder / f"{path.stem}.ipynb").write_text(notebook(done))
        print(args.folder / f"{path.stem}.ipynb")


if __name__ == "__main__":
    main()
