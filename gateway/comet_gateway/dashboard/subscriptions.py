"""Subscriptions of a WebSocket to the dashboard: pages, and channels.

    page       Watcher ─► document, then deltas     conflated: a client that does not read skips versions
    channel    generator ─► events, until it ends   it advances as the client reads

Each has a task of its own, which writes when there is room. While a client does not read, nothing is queued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from comet_gateway.dashboard import serving
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.channels import CHANNELS, Channel
from comet_gateway.dashboard.live_pages import LivePages
from comet_gateway.dashboard.page_request import Addresses
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import Problem
from comet_gateway.http.wire import Wire
from comet_gateway.push import frames
from comet_gateway.push.dashboard_port import DashboardRequest, DashboardSubscription
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
            "page", lambda id_, wire: PageSubscription(id_, sources.part(Watching).pages, page, request, wire)
        )

    def channel(self, name: str, params: Mapping[str, Any], principal: Principal) -> DashboardRequest:
        channel = self._channels.get(name)
        if channel is None:
            raise Problem("NOT_FOUND", f"channel {name!r} does not exist")
        principal.require(channel.role)
        sources = self._sources
        return DashboardRequest(
            "channel",
            lambda id_, wire: ChannelSubscription(id_, channel, params, ChannelSession(sources, principal), wire),
        )


class PageSubscription(DashboardSubscription):
    """One client's subscription to a page."""

    def __init__(self, id_: str, pages: LivePages, page: Page, request: PageRequest, wire: Wire) -> None:
        self._id = id_
        self._pages = pages
        self._page = page
        self._request = request
        self._wire = wire

    async def run(self) -> frames.EndFrame:
        """Writes the page until it is cancelled: a problem with the page is reported, and it is tried again."""
        watcher, leave = self._pages.watch(self._id, self._page, self._request)
        try:
            while True:
                await watcher.changed()
                await self._wire.room()
                if frame := watcher.next():
                    await self._wire.write([frame])
        finally:
            leave()


class ChannelSubscription(DashboardSubscription):
    """One client's subscription to a channel."""

    def __init__(
        self, id_: str, channel: Channel, params: Mapping[str, Any], session: ChannelSession, wire: Wire
    ) -> None:
        self._id = id_
        self._head = b'{"type":"event","id":%b,"seq":' % encode(id_)
        self._channel = channel
        self._params = params
        self._session = session
        self._wire = wire

    def control(self, params: Mapping[str, Any]) -> None:
        self._session.deliver(params)

    async def run(self) -> frames.EndFrame:
        seq = 0
        events = self._channel.open(self._session, self._params)
        try:
            await self._wire.room()
            async for event in events:
                await self._wire.write([[self._head, b'%d,"event":' % seq, encode(event), b"}"]])
                seq += 1
                await self._wire.room()
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()
        return frames.EndFrame(self._id, "done")
