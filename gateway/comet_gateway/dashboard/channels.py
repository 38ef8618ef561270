"""Channels: `{"type": "subscribe", "id": "t", "channel": "tail", "params": {…}}` on `/v1/ws`.

A channel is an asynchronous generator of events. It advances as the client reads: while the client does not, the
generator waits at its `yield`, and the channel decides what to skip. An event is a mapping that becomes JSON; parts
that are JSON already are `msgspec.Raw`. A Problem or an error of the SDK is sent to the client and ends the channel.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from comet_gateway.dashboard import alerts, candle_history, tail, topic_records
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.http.auth import Role

Open = Callable[[ChannelSession, Mapping[str, Any]], AsyncIterator[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Channel:
    """A kind of channel; `role` is required to open it."""

    role: Role
    open: Open


CHANNELS: Final[dict[str, Channel]] = {
    "alerts": Channel(Role.VIEWER, alerts.notices),
    "candles": Channel(Role.VIEWER, candle_history.candles),
    "search": Channel(Role.VIEWER, topic_records.search),
    "tail": Channel(Role.VIEWER, tail.tail),
}
