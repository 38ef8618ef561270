"""A cache of topics' metadata, refreshed once a second at most, however many requests need it.

While no broker answers, as after a leader has died, the previous metadata is used for a while: requests do not wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

import comet
from comet.entities import TopicInfo
from comet.errors import Timeout, TopicNotFound, Unavailable
from comet.types import check_topic_name
from comet_gateway.http.problems import Problem

T = TypeVar("T")

FRESH_S: Final = 1.0
STALE_S: Final = 60.0  # age up to which metadata is used while no broker answers
PATIENCE_S: Final = 0.25  # wait for an answer if older metadata is there
TOPICS_MAX: Final = 10_000


class _Known(NamedTuple):
    info: TopicInfo
    requested: float  # when


class Catalog:
    """The cache. One for a gateway, owned by its backend."""

    def __init__(self, admin: comet.Admin) -> None:
        self._admin = admin
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._requests: dict[str, asyncio.Task[TopicInfo]] = {}

    async def topic(self, name: str) -> TopicInfo:
        """A topic's metadata, at most a second old while the cluster answers. Raises TopicNotFound, InvalidArgument."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(name)
        if known is not None and now < known.requested + FRESH_S:
            return known.info
        check_topic_name(name)
        task = self._requests.get(name)
        if task is None:
            task = self._requests[name] = asyncio.create_task(self._fetch(name), name="gateway: look up a topic")
            task.add_done_callback(_ignore_error)
        if known is not None and now < known.requested + STALE_S:
            await asyncio.wait([task], timeout=PATIENCE_S)
            if not task.done() or isinstance(task.exception(), Unavailable | Timeout):
                return known.info
        return await asyncio.shield(task)

    async def with_topic(self, name: str, use: Callable[[TopicInfo], Awaitable[T]]) -> T:
        """Calls `use` with a topic's metadata; once more if the topic was recreated since they were cached.

        The requests of `use` carry the topic's id: they fail with TopicNotFound if another topic has the name now."""
        info = await self.topic(name)
        try:
            return await use(info)
        except (TopicNotFound, Problem) as error:
            if error.code != TopicNotFound.code:
                raise
            self.forget(name)
            again = await self.topic(name)
            if again.id == info.id:
                raise
        return await use(again)

    def forget(self, name: str) -> None:
        """Drops the metadata of a topic, as after a mismatch. An answer under way is too old for later callers."""
        self._known.pop(name, None)
        self._requests.pop(name, None)

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Surrounds a change of a topic: its metadata is dropped at the end, after errors too."""
        try:
            yield
        finally:
            self.forget(name)

    async def _fetch(self, name: str) -> TopicInfo:
        requested = asyncio.get_running_loop().time()
        try:
            info = await self._admin.describe_topic(name)
        except TopicNotFound:
            self._known.pop(name, None)
            raise
        finally:
            wanted = self._requests.get(name) is asyncio.current_task()
            if wanted:
                del self._requests[name]
        if not wanted:  # forgotten meanwhile
            return info
        self._known[name] = _Known(info, requested)
        self._known.move_to_end(name)
        if len(self._known) > TOPICS_MAX:
            self._known.popitem(last=False)
        return info


def _ignore_error(task: asyncio.Task[TopicInfo]) -> None:
    """Marks the task's error as retrieved: all callers may have given up."""
    if not task.cancelled():
        task.exception()
