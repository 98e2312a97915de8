"""The explorer on localhost, for typing new text. It answers this machine's browser and nobody else.

A page of another site could ask a browser to send requests here. So a request must name this server as its Host, and if
it names an Origin, that must be this server, too. Requests are small, and models run one at a time.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from selattn.errors import SelattnError
from selattn.views.explorer import Page

ADDRESS = "127.0.0.1"
MOST_BODY = 256 * 1024  # bytes of a request
SECONDS = 15  # that a silent connection is kept


def to_terminal(line: str) -> None:
    """Print a line about an error where the server runs."""
    print(line, file=sys.stderr, flush=True)


class Server(ThreadingHTTPServer):
    """Serves a page, and new ones for the texts that are typed into it.

    Args:
        page: the first one.
        read: makes a page of a text.
        port: 0 takes any that is free; `server_port` says which.
        report: is told, in one line, of each error that is no refusal and no connection that broke off.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with socketserver's 5, a burst waits a second and longer for its connections

    def __init__(
        self,
        page: Page,
        read: Callable[[str], Page],
        port: int = 0,
        report: Callable[[str], None] = to_terminal,
    ) -> None:
        self.page = page.html(serve=True).encode()
        self.read = read
        self.report = report
        self.alone = threading.Lock()
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SelattnError(f"cannot serve on port {port}: {reason}; choose another with --port") from None
        self.names = {f"{host}:{self.server_port}" for host in (ADDRESS, "localhost")}

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what a handler raised, unless the connection broke off or fell silent: then nobody waits."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            self.report(_line(error))


def _line(error: BaseException) -> str:
    """The error and its place, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join(traceback.format_exception_only(error)[-1].split())
    return f"error in the explorer's server: {what} ({place.filename}, line {place.lineno})"


class Handler(BaseHTTPRequestHandler):
    """Answers one request with the page or with a refusal."""

    server: Server
    timeout = SECONDS
    server_version, sys_version = "selattn", ""

    def do_GET(self) -> None:
        """Send the page, which is all there is."""
        if not self._is_ours():
            return
        if self.path.partition("?")[0] != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "there is only one page here")
            return
        self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def do_POST(self) -> None:
        """A new text: {"text": ...} gives {"header": ..., "blobs": ...}."""
        if not self._is_ours():
            return
        if self.path != "/trace":
            self._refuse(HTTPStatus.NOT_FOUND, "texts are sent to /trace")
            return
        text = self._text()
        if text is None:
            return
        try:
            with self.server.alone:
                header, blobs = self.server.read(text).parts(serve=True)
            body = json.dumps({"header": header, "blobs": blobs}).encode()
        except SelattnError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        except Exception as error:  # whatever a model raises, the next text may do
            self.server.report(_line(error))
            why = f"the model failed on this text ({type(error).__name__}); the server's terminal says more"
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, why)
            return
        self._answer(HTTPStatus.OK, "application/json", body)

    def _is_ours(self) -> bool:
        """Whether it comes from our own page or from a program of this machine; answered if not."""
        host, origin = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(host) != 1 or host[0] not in self.server.names:
            self._refuse(HTTPStatus.FORBIDDEN, "this server answers to its own name only")
            return False
        if any(each not in {f"http://{name}" for name in self.server.names} for each in origin):
            self._refuse(HTTPStatus.FORBIDDEN, "other sites may not ask this server")
            return False
        return True

    def _text(self) -> str | None:
        """The text of the request; answered if there is none."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or self.headers.get("Transfer-Encoding"):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "say how long the request is")
            return None
        if len(length) > 9 or int(length) > MOST_BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {MOST_BODY:,} bytes at most")
            return None
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
            return None
        try:
            found = json.loads(self.rfile.read(int(length)).decode("utf-8"))
            text = found["text"]
            text.encode("utf-8")  # half a surrogate pair is no text
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._refuse(HTTPStatus.BAD_REQUEST, 'send {"text": "..."}')
            return None
        return str(text)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._answer(status, "application/json", json.dumps({"error": why}).encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: texts are private."""
