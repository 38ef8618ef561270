"""Requests to an issuer that is slow, silent or hostile at any step. A step without a bound hangs the test."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from comet import limits
from comet.errors import Unavailable
from comet.security.certificates import Authority
from comet.security.fetch import Answer, fetch

Serve = Callable[[socket.socket, threading.Event], None]
HEAD = b"HTTP/1.1 200 OK\r\n"


class Server:
    """Gives each connection to `serve`, in a thread."""

    def __init__(self, serve: Serve) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.stopped = threading.Event()
        self._serve = serve
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
                self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with closing(connection), suppress(OSError):
            self._serve(connection, self.stopped)

    def close(self) -> None:
        self.stopped.set()
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[Callable[[Serve], Server]]:
    made: list[Server] = []

    def start(serve: Serve) -> Server:
        made.append(Server(serve))
        return made[-1]

    yield start
    for one in made:
        one.close()


def answering(*parts: bytes, drip: bytes = b"") -> Serve:
    """Sends the parts, then `drip` again and again."""

    def serve(connection: socket.socket, stopped: threading.Event) -> None:
        connection.recv(1 << 16)
        for part in parts:
            connection.sendall(part)
        while drip and not stopped.wait(0.02):
            connection.sendall(drip)

    return serve


def silent(connection: socket.socket, stopped: threading.Event) -> None:
    stopped.wait()


def test_an_answer_has_its_status_and_body(server: Callable[[Serve], Server]) -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket, _: threading.Event) -> None:
        asked.append(b"")
        while not asked[-1].endswith(b"\r\n\r\n" if asked[-1].startswith(b"GET") else b"x=1"):
            asked[-1] += connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno")

    url = f"http://127.0.0.1:{server(serve).port}/token?a=1"
    assert fetch(url, b"x=1", {"accept": "text/plain"}) == Answer(400, b"no")
    fetch(url)
    posted, got = (one.decode().split("\r\n") for one in asked)
    assert posted[0] == "POST /token?a=1 HTTP/1.1" and posted[-1] == "x=1" and "accept: text/plain" in posted
    assert got[0] == "GET /token?a=1 HTTP/1.1" and "connection: close" in got


@pytest.mark.parametrize(
    "serve",
    [
        silent,
        answering(drip=b"H"),
        answering(HEAD, drip=b"x"),
        answering(HEAD, drip=b"a: b\r\n"),
        answering(drip=b"HTTP/1.1 100 Continue\r\n\r\n"),
        answering(HEAD, b"\r\n", drip=b"x"),
        answering(HEAD, b"content-length: 100000\r\n\r\n", drip=b"x"),
        answering(HEAD, b"transfer-encoding: chunked\r\n\r\n", drip=b"1\r\nx\r\n"),
        answering(HEAD, b"transfer-encoding: chunked\r\n\r\n0\r\n", drip=b"a: b\r\n"),
    ],
    ids=["silent", "status", "line", "head", "continue", "body", "length", "chunks", "trailer"],
)
def test_no_step_takes_longer_than_the_whole(
    server: Callable[[Serve], Server], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ISSUER_FETCH_MS", 200)
    with pytest.raises(Unavailable, match=r"^no answer in time$"):
        fetch(f"http://127.0.0.1:{server(serve).port}/")


@pytest.mark.parametrize("record", [b"", b"\x16"], ids=["silent", "dripping"])
def test_a_handshake_is_bounded(
    server: Callable[[Serve], Server], record: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server begins a handshake record of 16 KiB, and sends it byte by byte."""
    monkeypatch.setattr(limits, "ISSUER_FETCH_MS", 200)
    serve = answering(b"\x16\x03\x03\x40\x00", drip=record) if record else silent
    with pytest.raises(Unavailable, match=r"^no answer in time$"):
        fetch(f"https://127.0.0.1:{server(serve).port}/")


def test_a_body_over_tls_is_bounded(
    server: Callable[[Serve], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create(tmp_path / "security", "comet")
    files = authority.issue_broker(1, ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    dripping = [b""]

    def serve(connection: socket.socket, stopped: threading.Event) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            answering(HEAD, b"\r\nsecret", drip=dripping[0])(secure, stopped)

    url = f"https://127.0.0.1:{server(serve).port}/"
    assert fetch(url, ca=authority.ca) == Answer(200, b"secret")
    with pytest.raises(Unavailable, match="its certificate: "):
        fetch(url)
    dripping[0] = b"x"
    monkeypatch.setattr(limits, "ISSUER_FETCH_MS", 500)
    with pytest.raises(Unavailable, match=r"^no answer in time$"):
        fetch(url, ca=authority.ca)


def test_a_large_answer_is_not_read_to_its_end(server: Callable[[Serve], Server]) -> None:
    most = limits.ISSUER_ANSWER_BYTES_MAX
    fits = server(answering(HEAD, b"content-length: %d\r\n\r\n" % most, b"x" * most))
    assert len(fetch(f"http://127.0.0.1:{fits.port}/").body) == most
    endless = server(answering(HEAD, b"\r\n", b"x" * (most + 1), drip=b"x"))
    with pytest.raises(Unavailable, match=f"its answer is larger than {most} bytes"):
        fetch(f"http://127.0.0.1:{endless.port}/")
    lines = server(answering(HEAD, *[b"a: b\r\n"] * 1_000, drip=b"a: b\r\n"))
    with pytest.raises(Unavailable, match=r"^HTTPException$"):
        fetch(f"http://127.0.0.1:{lines.port}/")


def test_a_redirect_is_an_answer(server: Callable[[Serve], Server]) -> None:
    elsewhere = server(answering(HEAD, b"\r\nsecret"))
    location = b"location: http://127.0.0.1:%d/\r\ncontent-length: 0\r\n\r\n" % elsewhere.port
    redirecting = server(answering(b"HTTP/1.1 302 Found\r\n", location))
    answer = fetch(f"http://127.0.0.1:{redirecting.port}/")
    assert answer == Answer(302, b"") and answer.redirects
    with pytest.raises(Unavailable, match=r"^status 302, a redirect is not followed$"):
        answer.content()
    with pytest.raises(Unavailable, match=r"^status 503$"):
        Answer(503, b"x").content()
    assert Answer(200, b"x").content() == b"x"


def test_a_proxy_of_the_environment_gets_nothing(
    server: Callable[[Serve], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = server(answering(HEAD, b"\r\nproxied"))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
    target = server(answering(HEAD, b"\r\ndirect"))
    assert fetch(f"http://127.0.0.1:{target.port}/").body == b"direct"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/", "Connection refused"),
        ("http://127.0.0.1:99999/", "its URL is not valid"),
        ("https://a..b/", "its URL is not valid"),
        ("http://127.0.0.1:{port}/a b", "InvalidURL"),
        ("http://127.0.0.1:{port}/é", "its URL is not valid"),
    ],
)
def test_an_address_that_cannot_be_asked_is_told(server: Callable[[Serve], Server], url: str, reason: str) -> None:
    with pytest.raises(Unavailable, match=rf"^{reason}$"):
        fetch(url.format(port=server(silent).port))


def test_a_connection_that_no_address_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of the listening socket is full, so the kernel answers no further connection. All addresses share the
    time."""
    monkeypatch.setattr(limits, "ISSUER_FETCH_MS", 200)
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = full.getsockname()
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        found = socket.getaddrinfo("127.0.0.1", address[1], type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found * 1_000)
        with pytest.raises(Unavailable, match=r"^no answer in time$"):
            fetch(f"http://127.0.0.1:{address[1]}/")
