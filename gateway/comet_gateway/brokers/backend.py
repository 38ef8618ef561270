"""The gateway's clients of the brokers: one SDK client of each kind for all requests.

Created by the application's lifespan, which closes it after the last request."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import comet
from comet_gateway.brokers.catalog import Catalog
from comet_gateway.brokers.key_tables import KeyTables
from comet_gateway.brokers.leader_transfer import LeaderJob
from comet_gateway.config import GatewayConfig
from comet_gateway.dead_letters.registry import DeadLetterIndexes


class Backend:
    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.bootstrap = config.bootstrap
        self.admin = comet.Admin(config.bootstrap, name="gateway")
        self.catalog = Catalog(self.admin)
        # One for each `acks`: a producer has one.
        self.producers = {
            acks: comet.Producer(config.bootstrap, acks=acks, timeout_ms=config.limits.timeout_ms_max, name="gateway")
            for acks in (comet.Acks.NONE, comet.Acks.LEADER, comet.Acks.ALL)
        }
        self.reader = comet.Reader(config.bootstrap, name="gateway")
        self.share_client = comet.ShareClient(config.bootstrap, name="gateway")
        self.key_tables = KeyTables(config.bootstrap)
        self.leaders = LeaderJob(self.admin)
        self.dead_letters = DeadLetterIndexes(self.admin, self.reader, config.limits)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for client in (self.admin, self.reader, self.share_client):
                await stack.enter_async_context(client)
            for producer in self.producers.values():
                await stack.enter_async_context(producer)
            stack.push_async_callback(self.leaders.close)
            stack.push_async_callback(self.key_tables.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()
