"""A headless browser for tests of pages; where there is none, they are skipped with a line that says what to do."""

import os
import shutil
from contextlib import contextmanager

import pytest

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@contextmanager
def browser():
    """A browser that reaches nothing but files and localhost."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: `make test-browser` installs it")
    program = os.environ.get("SELATTN_BROWSER") or shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: `make test-browser` installs it, or SELATTN_BROWSER names a browser")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield opened
        opened.close()


class Tab:
    """A page in the browser; whatever it complains of is kept."""

    def __init__(self, opened, address, width=1100, height=800, **how):
        self.context = opened.new_context(viewport={"width": width, "height": height}, **how)
        self.page = self.context.new_page()
        self.said = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append("a dialog opened") or dialog.dismiss())
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        self.ready()

    def ready(self):
        self.page.evaluate("() => explorer.ready")

    def ask(self, script):
        """What a piece of JavaScript gives, once the page has drawn."""
        self.ready()
        return self.page.evaluate(script)

    def view(self, link):
        """Go to another view of the same page, as a link in the address bar names it."""
        self.page.evaluate(
            """(link) => new Promise((done) => {
                addEventListener("hashchange", () => done(explorer.ready), { once: true });
                location.hash = link;
            })""",
            link,
        )

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.ready()

    def close(self):
        self.context.close()
