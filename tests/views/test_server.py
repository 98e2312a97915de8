"""The served explorer: this machine only, its own name only, small requests only, and nothing brings it down."""

import contextlib
import http.client
import json
import random
import re
import socket
import struct
import threading
from collections import Counter

import pytest

from selattn.errors import SelattnError
from selattn.views.explorer import Page
from selattn.views.explorer.server import MOST_BODY, Handler, Server
from tests.views.traces import random_trace


def read(text):
    if text == "bad":
        raise SelattnError("the text is bad")
    if text == "fails":
        raise ConnectionError("two\nlines")  # of a model's own, not of the browser's
    return Page((random_trace(size=4, layers=1, model=text),))


@pytest.fixture(scope="module")
def errors():
    """What the server reports."""
    return []


@pytest.fixture(scope="module")
def server(errors):
    with Server(Page((random_trace(),)), read, report=errors.append) as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield found
        found.shutdown()


def ask(server, method="GET", path="/", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    found = reply.status, reply.read(), reply.headers
    connection.close()
    return found


def post(server, text, **headers):
    return ask(server, "POST", "/trace", json.dumps({"text": text}), **{"Content_Type": "application/json", **headers})


def test_it_serves_the_page_and_new_ones(server):
    status, body, headers = ask(server)
    assert status == 200
    assert b"What is forgotten" in body
    assert headers["X-Frame-Options"] == "DENY"
    status, body, _ = post(server, "hello", Origin=f"http://localhost:{server.server_port}")
    assert status == 200
    assert json.loads(body)["header"]["subjects"][0]["model"] == "hello"
    status, body, _ = post(server, "bad")
    assert (status, json.loads(body)) == (400, {"error": "the text is bad"})


def test_it_is_on_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(SelattnError, match="choose another with --port"):
        Server(Page((random_trace(),)), read, server.server_port)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "evil.example:{}", "[::1]:{}", ""])
def test_other_hosts_are_refused(server, host):
    name = host.format(server.server_port)
    assert ask(server, Host=name)[0] == 403
    assert post(server, "hello", Host=name)[0] == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost:{}", "http://localhost:1", "http://localhost"]
)
def test_other_origins_are_refused(server, origin):
    assert post(server, "hello", Origin=origin.format(server.server_port))[0] == 403
    assert ask(server, Origin=origin.format(server.server_port))[0] == 403


def test_requests_are_small_and_of_one_form(server):
    assert post(server, "x" * MOST_BODY)[0] == 413
    assert ask(server, "POST", "/trace", "{}", Content_Type="text/plain")[0] == 415
    assert ask(server, "POST", "/other", "{}", Content_Type="application/json")[0] == 404
    assert ask(server, "GET", "/etc/passwd")[0] == 404
    for body in ("{}", "[]", "7", '{"text": 3}', "no json", '{"text": "\\ud800"}', "[" * 5000):
        assert ask(server, "POST", "/trace", body, Content_Type="application/json")[0] == 400
    assert ask(server, "DELETE", "/")[0] == 501
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as raw:
        raw.sendall(
            f"POST /trace HTTP/1.1\r\nHost: localhost:{server.server_port}\r\nContent-Length: -5\r\n\r\n".encode()
        )
        assert b" 411 " in raw.recv(1000)


def storm(port, count, seed=0):
    """Random requests: noise, and good ones with a piece left out, doubled or replaced. Returns the statuses.

    Each ends its half of the connection, so that the server waits for nothing more, and waits for the server's end,
    which comes after whatever a handler raises has been reported. One in ten breaks off instead.
    """
    chance = random.Random(seed)
    host = b"Host: localhost:%d\r\n" % port
    parts = [
        *(b"GET ", b"POST ", b"/ ", b"/trace ", b"HTTP/1.1\r\n", b"HTTP/9", b"\r\n", b"\r\n\r\n", b": ", b"\x00\xff"),
        *(b"Host: ", b"localhost:%d" % port, b"Content-Length: ", b"99999999999", b"12", b'{"text": "a"}', b"\xc3\xa9"),
        *(b"Content-Type: application/json\r\n", b"Transfer-Encoding: chunked\r\n", b"Origin: x\r\n"),
        *(b"Expect: 100-continue\r\n", host),
    ]
    get = [b"GET ", b"/ ", b"HTTP/1.1\r\n", host, b"\r\n"]
    post = [b"POST ", b"/trace ", b"HTTP/1.1\r\n", host, b"Content-Type: application/json\r\n"]
    post += [b"Content-Length: ", b"13", b"\r\n", b"\r\n", b'{"text": "a"}']
    found = Counter()
    for _ in range(count):
        message = list(chance.choice([get, post, chance.choices(parts, k=chance.randrange(12))]))
        for _ in range(chance.randrange(3)):
            place = chance.randrange(len(message) + 1)
            message[place : place + chance.randrange(2)] = [chance.choice([*parts, chance.randbytes(5)])]
        with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
            raw.sendall(b"".join(message))
            if chance.random() < 0.1:
                continue
            answer = b""
            with contextlib.suppress(ConnectionError):  # what the server left unread resets the connection
                raw.shutdown(socket.SHUT_WR)
                while more := raw.recv(65536):
                    answer += more
            status = re.match(rb"HTTP/1.0 (\d+) ", answer)
            found[int(status[1]) if status else None] += 1
    return found


def settle(server):
    """Wait until every request that was sent before has been answered or given up."""
    assert ask(server)[0] == 200  # connections are taken in their order
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(30)
            assert not thread.is_alive()


def test_a_thousand_random_requests_do_not_bring_it_down(server, errors, capfd):
    found = storm(server.server_port, 1000)
    settle(server)
    assert errors == []
    assert {200, 400, 403, 404, 411, 413, 415, 501} <= set(found)
    assert not {status for status in found if status and status >= 500} - {501, 505}
    assert post(server, "still here")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("method", ["do_GET", "do_POST", "_text", "_is_ours"])
def test_a_wrong_handler_is_seen(server, errors, method, monkeypatch):
    """The same requests find a handler that is wrong, or the test above would be blind."""

    def wrong(self):
        raise KeyError("wrong on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(Handler, method, wrong)
        storm(server.server_port, 50)
    settle(server)
    seen, errors[:] = list(errors), []
    assert len(seen) > 5
    assert all(re.fullmatch(r"error .*: KeyError: 'wrong on purpose' \(.*test_server.py, line \d+\)", e) for e in seen)


def test_an_error_of_the_model_is_answered_and_reported(server, errors):
    status, body, _ = post(server, "fails")
    assert (status, json.loads(body)) == (
        500,
        {"error": "the model failed on this text (ConnectionError); the server's terminal says more"},
    )
    (line,), errors[:] = list(errors), []
    assert "ConnectionError: two lines" in line
    assert "\n" not in line
    assert post(server, "lives")[0] == 200


def test_who_breaks_off_is_not_reported(server, errors):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % server.server_port)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it resets it
    settle(server)
    assert errors == []


def test_errors_go_to_the_terminal_by_default(capfd):
    with Server(Page((random_trace(),)), read) as found:
        try:
            raise ValueError("a")
        except ValueError:
            found.handle_error(None, None)
    assert "error in the explorer's server: ValueError: a (" in capfd.readouterr().err
