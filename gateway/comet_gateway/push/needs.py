"""What a user needs at the brokers for each frame of a WebSocket, where `user_rules` is set."""

from __future__ import annotations

from collections.abc import Iterator

import comet
from comet.admin.rules import Need
from comet.patterns import literal_start
from comet_gateway.push.dashboard_port import DashboardRequest
from comet_gateway.push.parse_subscribe import Joined, Played
from comet_gateway.push.session import Request
from comet_gateway.push.subscribe_request import SubscribeRequest


def needs_of(request: Request) -> tuple[Need, ...]:
    """Those of a subscription, as long as it is open."""
    return tuple(_needs(request))


def _needs(request: Request) -> Iterator[Need]:
    match request:
        case DashboardRequest():
            yield from request.needs
        case Played():
            yield "read", "topic", request.topic
        case Joined():
            yield "read", "group", request.group.name
            for topic in request.topics:
                yield "read", "topic", topic
            if isinstance(request.options, comet.ShareOptions) and request.options.dead_letter:
                yield "write", "topic", request.options.dead_letter
        case SubscribeRequest():
            for topic in request.topics:
                yield "read", "topic", topic
            if request.pattern:  # the subscriber learns the names of all topics that match
                yield "read", "topic", f"{literal_start(request.pattern)}*"
