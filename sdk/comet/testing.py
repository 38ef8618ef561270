"""Real brokers inside a test.

    broker     one broker in this process: real log, real gRPC, a temporary folder, a port of its own, real time
    cluster    brokers on virtual time: days pass in milliseconds, and everything can fail
    run        runs the coroutine of such a test; the pytest plugin does it for tests that take the fixture `comet`

See docs/guides/testing-your-app.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from comet.admin.admin import Admin
from comet.settings.topic import TopicConfig

if TYPE_CHECKING:
    from comet_testing.cluster import Cluster

T = TypeVar("T")


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


def cluster(brokers: int = 3, *, seed: int = 0, **settings: Any) -> Cluster:
    """A cluster for a test on virtual time, while its `async with` block does. `seed` decides everything that is left
    to chance: the same seed is the same run. `settings` are those of its brokers, as BrokerConfig has them.

    Clients that are made in the block reach this cluster, with any address. An App runs unchanged.

    >>> app = comet.App("localhost:9092")
    >>> @app.on("orders", group="billing", start="earliest")
    ... async def remind(order: dict) -> None:
    ...     await app.publish("reminders", order["id"], delay="2d")
    >>> async def test_reminder() -> None:
    ...     async with comet.testing.cluster(brokers=3, seed=7) as cluster:
    ...         await cluster.topic("orders", partitions=4)
    ...         await cluster.topic("reminders")
    ...         async with cluster.app(app):
    ...             await cluster.publish("orders", {"id": 1})
    ...             await cluster.advance("1d")
    ...             await cluster.kill(leader_of="reminders/0")
    ...             await cluster.advance("2d")
    ...             print(await cluster.values("reminders", int))
    >>> comet.testing.run(test_reminder())
    [1]
    """
    from comet_testing.cluster import Cluster

    return Cluster(brokers, seed, settings)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on an event loop whose time is virtual: it jumps to the next timer when nothing else is to do.
    `time.time` and `time.monotonic` follow it.

    >>> async def sleep() -> str:
    ...     await asyncio.sleep(3600)
    ...     return "an hour later"
    >>> import asyncio
    >>> comet.testing.run(sleep())
    'an hour later'
    """
    from comet_testing.virtual_time.virtual_loop import run as run_virtual

    return run_virtual(main)
