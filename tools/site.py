"""What mkdocs calls while it builds the site (`hooks` in mkdocs.yml; `make docs`).

docs/ stays readable in the repository: its pages link to records, to the README and to source files where these are.
Here the README becomes the first page, whatever else is linked from outside docs/ is taken into the site, and each
tutorial is run and becomes a page and a notebook.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")  # where a link or an image of Markdown leads to
CODE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, and all that pages link to, to what lies in docs/."""
    from mkdocs.structure.files import File  # only the site needs mkdocs

    for path in sorted((ROOT / "docs/tutorials").glob("*.py")):
        for name, content in tutorial(path).items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    waiting = {in_repository(file.src_uri) for file in files.documentation_pages()} | {"README.md"}
    waiting |= {page for page in pages(config.nav) if (ROOT / page).is_file()}
    seen: set[str] = set()
    while waiting:
        source = waiting.pop()
        seen.add(source)
        uri = in_site(source)
        if (ROOT / source).is_dir():
            files.append(File.generated(config, uri, content=listing(source)))
        elif uri not in files.src_uris:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
        if uri.endswith(".md"):
            inside = f"{source}/index.md" if (ROOT / source).is_dir() else source
            waiting |= set(linked(files.src_uris[uri].content_string, inside)) - seen
    return files


def pages(nav: Any) -> Iterator[str]:
    """Every page that the navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(part)


def tutorial(path: Path) -> dict[str, str | bytes]:
    """Its page, its notebook and its pictures, by name. SELATTN_SITE=quick leaves out running it."""
    from tools import tutorials

    quick = os.environ.get("SELATTN_SITE") == "quick"
    done = tutorials.cells(path.read_text()) if quick else tutorials.run(path)
    page, pictures = tutorials.markdown(done, path.stem)
    title, _, rest = page.partition("\n")
    either = f"*To run it yourself: [as a notebook]({path.stem}.ipynb), or "
    either += f"`python docs/tutorials/{path.name}` in a checkout.*"
    return {
        f"{path.stem}.md": f"{title}\n\n{either}\n{rest}",
        f"{path.stem}.ipynb": tutorials.notebook(done),
        **pictures,
    }


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links lead to where things are in the site."""
    source, here = in_repository(page.file.src_uri), posixpath.dirname(page.file.src_uri)
    if (ROOT / source).is_dir():
        return markdown  # its links lead to its own files
    if source == "README.md":
        page.meta["hide"] = ["navigation"]  # which has no other page here

    def moved(match: re.Match[str]) -> str:
        target = resolved(match[1], source)
        if target.startswith("docs/tutorials/") and not (ROOT / target).exists():
            return match[0]  # a notebook, or a picture that was drawn
        return posixpath.relpath(in_site(target), here)

    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in CODE.split(markdown))


def linked(markdown: str, source: str) -> Iterator[str]:
    """Files and folders outside docs/ that a page links to, by their place in the repository."""
    for part in CODE.split(markdown):
        for match in LINK.finditer(part if not part.startswith("```") else ""):
            target = resolved(match[1], source)
            if not target.startswith("docs/") and (ROOT / target).exists():
                yield target


def listing(folder: str) -> str:
    """The page of a folder of records."""
    names = sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())
    return f"# {folder}\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"


def resolved(link: str, source: str) -> str:
    """Where a link of a file leads, as a path in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def in_site(path: str) -> str:
    """The place of a repository's file in the site."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"{path}/index.md"
    if path.startswith("docs/tutorials/") and path.endswith(".py"):
        return path.removeprefix("docs/").removesuffix(".py") + ".md"
    return path.removeprefix("docs/")


def in_repository(uri: str) -> str:
    """The reverse."""
    if uri == "index.md":
        return "README.md"
    if uri.startswith("tutorials/"):
        return f"docs/{uri.removesuffix('.md')}.py"
    return f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri.removesuffix("/index.md")
