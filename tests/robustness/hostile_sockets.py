"""WebSocket and HTTP as a hostile or broken client speaks them: bytes on a TCP connection, for test_gateway_hostile."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9


def frame(payload: bytes, *, opcode: int = TEXT, final: bool = True, masked: bool = True, length: int = -1) -> bytes:
    """One frame of a client. `length` is what it says, where that is a lie."""
    said = len(payload) if length < 0 else length
    head = bytes([(0x80 if final else 0) | opcode])
    mask_bit = 0x80 if masked else 0
    if said < 126:
        head += bytes([mask_bit | said])
    elif said < 1 << 16:
        head += bytes([mask_bit | 126]) + struct.pack(">H", said)
    else:
        head += bytes([mask_bit | 127]) + struct.pack(">Q", said)
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


class RawSocket:
    """A WebSocket without manners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def write(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def say(self, **members: Any) -> None:
        await self.write(frame(json.dumps(members).encode()))

    async def hear(self, within_s: float = 10.0) -> tuple[int, bytes]:
        """The next frame of the server: opcode and payload. A connection that ended is a close without a code."""
        try:
            async with asyncio.timeout(within_s):
                head = await self.reader.readexactly(2)
                size = head[1] & 0x7F
                if size == 126:
                    size = int.from_bytes(await self.reader.readexactly(2), "big")
                elif size == 127:
                    size = int.from_bytes(await self.reader.readexactly(8), "big")
                return head[0] & 0x0F, await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return CLOSE, b""

    async def closed(self) -> int:
        """Reads to the end; the close code, 1006 where there was none."""
        while True:
            opcode, payload = await self.hear()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1006

    def end(self) -> None:
        """Says that nothing more comes, and still listens."""
        with suppress(OSError):
            self.writer.write_eof()

    def abort(self) -> None:
        self.writer.transport.abort()


class Sockets:
    """All that one test opens; closed with it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._all: list[RawSocket] = []

    async def connect(self) -> RawSocket:
        one = RawSocket(*await asyncio.open_connection("127.0.0.1", self.port))
        self._all.append(one)
        return one

    async def opened(self) -> RawSocket:
        """With the handshake behind it."""
        one = await self.connect()
        one.writer.write(handshake(self.port))
        answer = await one.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer
        return one

    async def close(self) -> None:
        for one in self._all:
            one.abort()
        for one in self._all:
            with suppress(ConnectionError):
                await one.writer.wait_closed()


def handshake(port: int, **headers: str) -> bytes:
    given = {
        "Host": f"127.0.0.1:{port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
        **headers,
    }
    return (
        "GET /v1/ws HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items()) + "\r\n"
    ).encode()


def _deep(random: Random) -> bytes:
    depth = random.choice((50, 5_000, 200_000))
    return b"[" * depth + b"]" * depth


def _subscribe(random: Random) -> bytes:
    """A subscribe frame in which one thing is wrong, or strange."""
    asked: dict[str, Any] = {"type": "subscribe", "id": "x", "topic": "good"}
    odd: Any = random.choice(
        (None, -1, 2**70, 1.5, "", "x" * 5_000, [], {}, [[]], True, "\x00", "../..", "\ud83d\ude00")
    )
    asked[
        random.choice((*asked, "start", "permits", "policy", "cursors", "partitions", "pattern", "replay", "odd"))
    ] = odd
    return json.dumps(asked).encode()


PATHS: Final = (
    "/", "/topics", "/topics/good", "/topics/good/records?start=live", "/about", "/quotes", "/static/x/js/main.js",
    "/v1/topics", "//good", "/topics/../about", "/topics/%00", "/topics/" + "%2f" * 500, "/topics?" + "a=1&" * 100,
    "/topics?filter=" + "(a+)+" * 50, "/topics?filter=%ff%fe", "http://127.0.0.1/", "\ud83d\ude00", "?", "/" * 9_000,
)  # fmt: skip


def _page(random: Random) -> bytes:
    """A page or channel that may exist, and what belongs to other subscriptions beside it."""
    asked: dict[str, Any] = {"type": "subscribe", "id": random.choice(("x", "y", "z"))}
    if random.random() < 0.7:
        asked["page"] = random.choice(PATHS)
    else:
        asked["channel"] = random.choice(("tail", "search", "odd", ""))
        odd: Any = random.choice(
            ({}, {"topic": "good"}, {"topic": 1}, {"topic": "x" * 9_000}, {"filter": "((("}, [], None)
        )
        asked["params"] = odd
    if random.random() < 0.3:
        asked |= random.choice(({"topic": "good"}, {"params": {}}, {"group": "g"}, {"permits": 1}, {"odd": 1}))
    return json.dumps(asked).encode()


def _page_after_page(random: Random) -> bytes:
    """Pages that are left before their first frame, and controls of what is not there."""
    said: list[dict[str, Any]] = []
    for number in range(random.randrange(1, 60)):
        id_ = f"{number % 20}"
        said.append({"type": "subscribe", "id": id_, "page": f"/topics?page={number}"})
        said.append({"type": "unsubscribe", "id": id_})
        said.append({"type": "control", "id": id_, "params": {"rows": False}})
    return b"".join(frame(json.dumps(one).encode()) for one in said)


def _frame_of_any_type(random: Random) -> bytes:
    kinds = (
        "subscribe",
        "unsubscribe",
        "permit",
        "ack",
        "produce",
        "replay",
        "control",
        "ping",
        "records",
        "page",
        "welcome",
        "",
    )
    members: dict[str, Any] = {"type": random.choice(kinds)}
    for name in random.sample(
        ("id", "topic", "count", "cursor", "records", "partition", "offset", "page", "channel", "params"), 4
    ):
        members[name] = random.choice((0, "x", None, [], {}, -5, 2**64, "good", [{"value": 1}], True))
    return json.dumps(members).encode()


# What a client can send once it is connected.
ABUSES: Final[dict[str, Callable[[Random], bytes]]] = {
    "no JSON": lambda random: frame(random.randbytes(random.randrange(1, 300)).hex().encode()),
    "cut JSON": lambda random: frame(_subscribe(random)[: random.randrange(20)]),
    "deep JSON": lambda random: frame(_deep(random)),
    "JSON that is no object": lambda random: frame(random.choice((b"1", b'"x"', b"[]", b"null", b"1e400", b"NaN"))),
    "odd subscribe": lambda random: frame(_subscribe(random)),
    "odd page": lambda random: frame(_page(random)),
    "page after page": _page_after_page,
    "wrong order": lambda random: frame(_frame_of_any_type(random)),
    "not UTF-8": lambda random: frame(b'{"type":"ping\xff\xfe' + random.randbytes(10)),
    "binary": lambda random: frame(random.randbytes(random.randrange(500)), opcode=BINARY),
    "huge": lambda random: frame(b'{"type":"ping","id":"' + b"x" * random.choice((1 << 20, 3 << 20)) + b'"}'),
    "a length that is a lie": lambda random: frame(b"x", length=random.choice((1 << 40, (1 << 63) - 1, (1 << 64) - 1))),
    "not masked": lambda random: frame(_subscribe(random), masked=False),
    "reserved opcode": lambda random: frame(b"x", opcode=random.choice((3, 7, 0xB, 0xF))),
    "reserved bits": lambda random: bytes([0x81 | random.choice((0x10, 0x20, 0x40))]) + frame(b"x")[1:],
    "continuation of nothing": lambda _: frame(b"x", opcode=0),
    "a message in a message": lambda _: frame(b"{", final=False) + frame(b"}", opcode=TEXT),
    "endless message": lambda _: frame(b"{", final=False) + frame(b" " * 65_000, opcode=0, final=False) * 40,
    "long ping": lambda _: frame(b"x" * 126, opcode=PING),
    "many pings": lambda _: frame(b"x", opcode=PING) * 2_000,
    "odd close": lambda random: frame(random.choice((b"x", b"\x00\x01", b"\x03\xe8\xff\xff")), opcode=CLOSE),
    "noise": lambda random: random.randbytes(random.randrange(1, 2_000)),
}
