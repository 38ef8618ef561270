"""A webhook: one POST of JSON over HTTP/1.1, to a checked address, in bounded time and memory.

    POST /path HTTP/1.1
    Content-Type: application/json
    webhook-id: 3fa1c2d4e5b6-7-firing         the same at each attempt, for a receiver to know repetitions
    webhook-timestamp: 1790000000             seconds, of this attempt
    webhook-signature: v1,base64(HMAC-SHA256(secret, "id.timestamp.body"))     where the gateway has a secret

The headers are those of the Standard Webhooks specification, so its libraries verify them. Only the head of the answer
is read. A redirect is a failure: it would lead to an address that was not checked.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ssl
from collections.abc import Sequence
from typing import Any, Final

import msgspec

import comet
from comet_gateway.alerts.journal import Notice
from comet_gateway.alerts.targets import (
    PORTS,
    ForbiddenTarget,
    Network,
    Resolve,
    addresses_of,
    split_url,
    system_resolve,
)

TIMEOUT_S: Final = 10.0  # of one attempt, all in all
HEAD_BYTES_MAX: Final = 16 * 1024
INTERIM_MAX: Final = 3  # answers such as 103
_LATER: Final = frozenset({408, 425, 429})  # that a retry may help


class DeliveryFailed(Exception):
    """An attempt failed. `again`: a retry may help."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(text)
        self.again = again


def message_of(notice: Notice) -> dict[str, Any]:
    """The JSON document of a notice."""
    rule = notice.rule
    return {
        "id": notice.id,
        "event": notice.event,
        "time_us": str(notice.time_us),
        "since_us": str(notice.since_us),
        "severity": rule.severity,
        "value": notice.value,
        "text": notice.text,
        "rule": {
            "id": rule.id,
            "name": rule.name,
            "kind": rule.kind,
            "target": rule.target(),
            "condition": rule.words(),
        },
    }


def signature(secret: bytes, id_: str, time_s: int, body: bytes) -> str:
    digest = hmac.new(secret, b"%b.%d.%b" % (id_.encode(), time_s, body), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


class WebhookClient:
    """Calls webhooks. Stateless but for its settings."""

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        secret: bytes = b"",
        *,
        resolve: Resolve = system_resolve,
        timeout_s: float = TIMEOUT_S,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = allowed
        self._secret = secret
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._context = context

    async def post(self, url: str, notice: Notice, time_s: int) -> None:
        """Raises DeliveryFailed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._post(url, notice, time_s)
        except TimeoutError:
            raise DeliveryFailed(f"no answer within {self._timeout_s:g} s", again=True) from None
        except ForbiddenTarget as error:
            raise DeliveryFailed(str(error), again=False) from None
        except UnicodeError:
            raise DeliveryFailed("the host of the URL is not valid", again=False) from None
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, ValueError):
            raise DeliveryFailed("the answer is not HTTP, or its head is larger than 16 kB", again=True) from None
        except OSError as error:
            text = getattr(error, "verify_message", "") or error.strerror or str(error) or type(error).__name__
            raise DeliveryFailed(f"no connection: {text}", again=True) from None
        if 300 <= status < 400:
            raise DeliveryFailed(f"status {status}: a redirect is not followed; give the final URL", again=False)
        if not 200 <= status < 300:
            raise DeliveryFailed(f"status {status}", again=status >= 500 or status in _LATER)

    async def _post(self, url: str, notice: Notice, time_s: int) -> int:
        parts = split_url(url)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        addresses = await addresses_of(host, port, self._allowed, self._resolve)
        reader, writer = await self._connect(addresses, port, host if parts.scheme == "https" else "")
        try:
            body = msgspec.json.encode(message_of(notice))
            lines = [
                f"POST {parts.path or '/'}{f'?{parts.query}' if parts.query else ''} HTTP/1.1",
                f"Host: {parts.netloc}",
                f"User-Agent: comet/{comet.__version__}",
                "Content-Type: application/json",
                f"Content-Length: {len(body)}",
                "Connection: close",
                f"webhook-id: {notice.id}",
                f"webhook-timestamp: {time_s}",
            ]
            if self._secret:
                lines.append(f"webhook-signature: {signature(self._secret, notice.id, time_s, body)}")
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
            for _ in range(INTERIM_MAX):
                status = _status(await reader.readuntil(b"\r\n\r\n"))
                if status >= 200:
                    return status
            raise ValueError
        finally:
            writer.transport.abort()  # the rest of the answer is of no interest, and may be endless

    async def _connect(
        self, addresses: Sequence[str], port: int, tls_host: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if tls_host and self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
        secured: dict[str, Any] = {"ssl": self._context, "server_hostname": tls_host} if tls_host else {}
        failed: OSError = OSError("no address")
        for address in addresses:
            try:
                return await asyncio.open_connection(address, port, limit=HEAD_BYTES_MAX, **secured)
            except OSError as error:
                failed = error
        raise failed


def _status(head: bytes) -> int:
    """Raises ValueError."""
    version, _, rest = head.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise ValueError
    return int(rest[:3])
