"""What the gateway knows of topics: asked for once, and believed for a few seconds, however many requests need it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

import comet
from comet.types import TopicInfo, check_topic_name

FRESH_S: Final = 5.0
TOPICS_MAX: Final = 10_000


class _Known(NamedTuple):
    info: TopicInfo
    until: float


class Catalog:
    """One for a gateway, owned by its backend."""

    def __init__(self, admin: comet.Admin) -> None:
        self._admin = admin
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, asyncio.Task[TopicInfo]] = {}

    async def topic(self, name: str) -> TopicInfo:
        """A topic, a few seconds old at most. Raises TopicNotFound, InvalidArgument."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(name)
        if known is not None and now < known.until:
            return known.info
        check_topic_name(name)
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.create_task(self._ask(name), name="gateway: look up a topic")
            task.add_done_callback(_looked_at)
        return await asyncio.shield(task)

    def forget(self, name: str) -> None:
        """Something did not fit: ask anew."""
        self._known.pop(name, None)

    async def _ask(self, name: str) -> TopicInfo:
        self._known.pop(name, None)
        try:
            info, _ = await self._admin.describe_topic(name)
        finally:
            del self._asking[name]
        self._known[name] = _Known(info, asyncio.get_running_loop().time() + FRESH_S)
        if len(self._known) > TOPICS_MAX:
            self._known.popitem(last=False)
        return info


def _looked_at(task: asyncio.Task[TopicInfo]) -> None:
    """Whoever waited may be gone: an error that nobody took is nobody's loss."""
    if not task.cancelled():
        task.exception()
