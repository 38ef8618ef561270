"""One event of the audit log: a JSON object, which is a line of the log and the value of a record.

    {"time":"2026-11-28T09:15:02.250000+00:00","broker":1,"event":"denied","principal":"client:billing",
     "credential":"3f9a51c07d42","address":"10.0.0.7","operation":"write","kind":"topic","name":"orders",
     "code":"FORBIDDEN","message":"client:billing may not write topic 'orders'"}

Empty fields are left out. Clients choose names, so texts are cut, and all but printable ASCII is escaped.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from comet.units import time_text

EventKind: TypeAlias = Literal["refused", "denied", "admin", "first_use", "dropped"]

TEXT_CHARS_MAX: Final = 256
MESSAGE_CHARS_MAX: Final = 500
OTHERS: Final = "_others"  # the name in an event that stands for those that have no place in a table


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened: `code` is that of the error, empty if it was done; `count` is of repetitions of the same event."""

    time: str = ""
    broker: int = 0
    event: EventKind
    principal: str = ""
    credential: str = ""  # id of the access key, or of the key that signed the token
    via: str = ""  # the gateway that acted for the principal
    address: str = ""
    operation: str = ""
    kind: str = ""
    name: str = ""
    code: str = ""
    message: str = ""
    count: int = 0
    dry_run: bool = False
    request: dict[str, Any] = {}

    def at(self, broker: int, time_us: int) -> AuditEvent:
        """The same, stamped."""
        return msgspec.structs.replace(self, broker=broker, time=time_text(time_us, "microseconds"))

    def encode(self) -> str:
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))


def cut(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def host_of(peer: str) -> str:
    """The host of a peer, as gRPC writes it; of a caller of the Unix socket its user, without the process.

    >>> host_of("ipv4:10.0.0.7:54321"), host_of("ipv6:%5B::1%5D:54321"), host_of("unix:uid=1000,pid=42")
    ('10.0.0.7', '::1', 'unix:uid=1000')
    """
    scheme, _, address = unquote(peer).partition(":")
    if scheme not in {"ipv4", "ipv6"}:
        return cut(peer.partition(",pid=")[0])
    return cut(address.rpartition(":")[0].strip("[]"))
