"""What the live socket carries beside pages: `{"id": 7, "open": "tail", "params": {…}}`.

A channel is an asynchronous generator of events, which are asked for one by one as the client reads them: while it does
not, the generator waits at its `yield`, and it is up to the channel what becomes of what happens meanwhile. An event is
a mapping that becomes JSON; parts of it that are JSON already are `msgspec.Raw`. What it raises, a Problem or an SDK's
error, is told to the client; either way the channel is over, and closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from comet_gateway.dashboard import tail, topic_records
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.http.auth import Role

Open = Callable[[ChannelSession, Mapping[str, Any]], AsyncIterator[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Channel:
    """`role`: who may open it."""

    role: Role
    open: Open


CHANNELS: Final[dict[str, Channel]] = {
    "search": Channel(Role.VIEWER, topic_records.search),
    "tail": Channel(Role.VIEWER, tail.tail),
}
