"""Receivers of notices: an HTTP server for webhooks, also a hostile one, and a mail server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@dataclass
class Call:
    """One request."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Receiver:
    """Keeps requests, and answers each with `answer(number of the request)`; None: never."""

    answer: Callable[[int], bytes | None] = lambda _: OK
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=s3cret"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in rest)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.calls.append(Call(line, headers, body))
            found = self.answer(len(self.calls))
            if found is None:
                await reader.read()  # until the client gives up
            else:
                writer.write(found)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiver(answer: Callable[[int], bytes | None] = lambda _: OK) -> AsyncIterator[Receiver]:
    found = Receiver(answer)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


@dataclass
class MailReceiver:
    """A mail server that takes everything but what `refuses` is in. Without TLS and logins."""

    refuses: str = "nobody@"
    rejects: bool = False  # the content of all messages
    messages: list[str] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())
            await writer.drain()

        try:
            await say("220 mail.test ESMTP")
            while line := (await reader.readline()).decode().strip():
                word = line[:4].upper()
                if word == "DATA" and self.rejects:
                    await say("554 no such content")
                elif word == "DATA":
                    await say("354 go on")
                    text = (await reader.readuntil(b"\r\n.\r\n")).decode()
                    self.messages.append(text)
                    await say("250 taken")
                elif word == "RCPT" and self.refuses in line:
                    await say("550 no such mailbox")
                elif word == "QUIT":
                    await say("221 bye")
                    return
                else:
                    if word == "RCPT":
                        self.recipients.append(line)
                    await say("250 mail.test")
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def mail_receiver() -> AsyncIterator[MailReceiver]:
    found = MailReceiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
