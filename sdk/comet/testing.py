"""A real broker inside a test: real log, real gRPC, a temporary folder, a port of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from comet.admin.admin import Admin
from comet.settings.topic import TopicConfig


class TestBroker:
    """A broker that runs while its `async with` block does. In code without an event loop use `with`; then it runs
    on the loop of comet.sync."""

    __test__ = False  # else pytest collects it because of its name

    def __init__(self, topics: Mapping[str, int], data: Path | None, settings: Mapping[str, Any]) -> None:
        self.address = ""
        self._topics = dict(topics)
        self._data = data
        self._settings = dict(settings)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        from comet_broker.config import BrokerConfig
        from comet_broker.server import Server

        async with AsyncExitStack() as stack:
            folder = self._data
            if folder is None:
                temporary = tempfile.TemporaryDirectory(prefix="comet-")
                stack.callback(temporary.cleanup)
                folder = Path(temporary.name)
            config = BrokerConfig(data=folder, port=0, drain_grace_ms=200, topic_defaults=TopicConfig(**self._settings))
            server = await stack.enter_async_context(Server(config))
            self.address = server.address
            async with Admin(self.address) as admin:
                known = {topic.name for topic in await admin.list_topics()}
                for name, partitions in self._topics.items():
                    if name not in known:
                        await admin.create_topic(name, partitions=partitions)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def __enter__(self) -> Self:
        from comet.sync import call

        return call(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        from comet.sync import call

        call(self.__aexit__(None, None, None))


def broker(topics: Mapping[str, int] | Sequence[str] = (), *, data: Path | None = None, **settings: Any) -> TestBroker:
    """A broker for a test, with topics: names, or names with their number of partitions.

    `settings` are the defaults of its topics. With `data` the folder is kept, so that a test can restart the broker.

    >>> async def test() -> None:
    ...     async with comet.testing.broker(["quotes"]) as broker:
    ...         async with comet.Producer(broker.address) as producer:
    ...             print((await producer.publish("quotes", b"EURUSD 1.08")).offset)
    >>> comet.run(test())
    0
    """
    named = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
    return TestBroker(named, data, settings)
