"""Subscriptions of a WebSocket to the dashboard: pages, and channels.

    page       Watcher ─► document, then deltas     conflated: a client that does not read skips versions
    channel    generator ─► events, until it ends   it advances as the client reads

The connection pumps both when there is room. While a client does not read, nothing is queued.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from comet_gateway.dashboard import serving
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.channels import CHANNELS, Channel
from comet_gateway.dashboard.live_pages import LivePages, Watcher
from comet_gateway.dashboard.page_request import Addresses
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.needs import ALL, needs_of_page
from comet_gateway.http.problems import Problem
from comet_gateway.http.topic_roles import require_topic
from comet_gateway.http.wire import Frame
from comet_gateway.push import frames
from comet_gateway.push.dashboard_port import DashboardRequest
from comet_web.document import Document
from comet_web.page_request import PageRequest
from comet_web.pages import PAGES, Page

encode: Final = msgspec.json.Encoder().encode


class Watching:
    """The live pages of an application; kept by its sources."""

    def __init__(self, sources: Sources) -> None:
        async def load(page: Page, request: PageRequest) -> Document:
            return await serving.document(sources, page, request)

        self.pages = LivePages(load, sources.sampler, sources.config.limits.live_pages_max)

    def statistics(self) -> dict[str, Any]:
        return {"pages": self.pages.count}

    def close(self) -> None:
        self.pages.close()


class SubscribableDashboard:
    """Implements `dashboard_port.Dashboard`; empty where the gateway runs without the dashboard."""

    def __init__(
        self,
        sources: Sources,
        *,
        is_open: bool,
        pages: Iterable[Page] = PAGES,
        channels: Mapping[str, Channel] = CHANNELS,
    ) -> None:
        shown = sources.config.dashboard
        self._sources = sources
        self._is_open = is_open  # no login required
        self._addresses = Addresses(pages if shown else ())
        self._channels = channels if shown else {}

    def page(self, url: str, principal: Principal) -> DashboardRequest:
        page, request = self._addresses.find(url, principal, is_open=self._is_open)
        principal.require(Role(page.role))
        sources = self._sources
        return DashboardRequest(
            "page",
            lambda id_: PageSubscription(id_, sources.part(Watching).pages, page, request),
            needs_of_page(page.name, request.params),
        )

    def channel(self, name: str, params: Mapping[str, Any], principal: Principal) -> DashboardRequest:
        channel = self._channels.get(name)
        if channel is None:
            raise Problem("NOT_FOUND", f"channel {name!r} does not exist")
        principal.require(channel.role)
        require_topic(principal, params.get("topic"))
        sources = self._sources
        return DashboardRequest(
            "channel",
            lambda id_: ChannelSubscription(id_, channel, params, ChannelSession(sources, principal)),
            needs_of_page("topic_records", {"topic": params.get("topic", ALL)}),
        )


class PageSubscription:
    """One client's subscription to a page, as a source of frames. It has no end."""

    def __init__(self, id_: str, pages: LivePages, page: Page, request: PageRequest) -> None:
        self._id = id_
        self._pages = pages
        self._page = page
        self._request = request
        self._watcher: Watcher | None = None
        self._leave: Callable[[], None] | None = None

    async def begin(self) -> None:
        self._watcher, self._leave = self._pages.watch(self._id, self._page, self._request)

    async def ready(self) -> None:
        assert self._watcher is not None
        await self._watcher.changed()

    async def take(self) -> list[Frame]:
        assert self._watcher is not None
        frame = self._watcher.next()
        return [frame] if frame else []

    async def close(self) -> None:
        if self._leave is not None:
            self._leave()


class ChannelSubscription:
    """One client's subscription to a channel, as a source of frames. It ends with its events."""

    def __init__(self, id_: str, channel: Channel, params: Mapping[str, Any], session: ChannelSession) -> None:
        self._id = id_
        self._head = b'{"type":"event","id":%b,"seq":' % encode(id_)
        self._channel = channel
        self._params = params
        self._session = session
        self._events: AsyncIterator[Mapping[str, Any]] | None = None
        self._event: Mapping[str, Any] | None = None  # the next one, until it can be sent
        self._seq = 0

    def control(self, params: Mapping[str, Any]) -> None:
        self._session.deliver(params)

    async def begin(self) -> None:
        self._events = self._channel.open(self._session, self._params)

    async def ready(self) -> None:
        assert self._events is not None
        self._event = await anext(self._events, None)

    async def take(self) -> list[Frame] | frames.EndFrame:
        if self._event is None:
            return frames.EndFrame(self._id, "done")
        frame = [self._head, b'%d,"event":' % self._seq, encode(self._event), b"}"]
        self._seq += 1
        return [frame]

    async def close(self) -> None:
        if (close := getattr(self._events, "aclose", None)) is not None:
            await close()
