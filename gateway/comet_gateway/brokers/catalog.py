"""What the gateway knows of topics: asked for once a second at most, however many requests need it.

While nobody answers, because a leader has died, what was known before does for a while: requests need not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import comet
from comet.errors import Timeout, TopicNotFound, Unavailable
from comet.types import TopicInfo, check_topic_name

FRESH_S: Final = 1.0
STALE_S: Final = 60.0  # that it may be used for while there is no answer
PATIENCE_S: Final = 0.25  # that an answer is waited for where something is known
TOPICS_MAX: Final = 10_000


class _Known(NamedTuple):
    info: TopicInfo
    asked: float  # when


class Catalog:
    """One for a gateway, owned by its backend."""

    def __init__(self, admin: comet.Admin) -> None:
        self._admin = admin
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, asyncio.Task[TopicInfo]] = {}

    async def topic(self, name: str) -> TopicInfo:
        """A topic, as it was a second ago at most while the cluster answers. Raises TopicNotFound, InvalidArgument."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(name)
        if known is not None and now < known.asked + FRESH_S:
            return known.info
        check_topic_name(name)
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.create_task(self._ask(name), name="gateway: look up a topic")
            task.add_done_callback(_looked_at)
        if known is not None and now < known.asked + STALE_S:
            await asyncio.wait([task], timeout=PATIENCE_S)
            if not task.done() or isinstance(task.exception(), Unavailable | Timeout):
                return known.info
        return await asyncio.shield(task)

    def forget(self, name: str) -> None:
        """Something did not fit: ask anew. An answer that is under way is too old for who asks from now on."""
        self._known.pop(name, None)
        self._asking.pop(name, None)

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """For what makes a topic another: what was known of it is forgotten, however that ends."""
        try:
            yield
        finally:
            self.forget(name)

    async def _ask(self, name: str) -> TopicInfo:
        asked = asyncio.get_running_loop().time()
        try:
            info, _ = await self._admin.describe_topic(name)
        except TopicNotFound:
            self._known.pop(name, None)
            raise
        finally:
            wanted = self._asking.get(name) is asyncio.current_task()
            if wanted:
                del self._asking[name]
        if not wanted:  # forgotten meanwhile
            return info
        self._known[name] = _Known(info, asked)
        self._known.move_to_end(name)
        if len(self._known) > TOPICS_MAX:
            self._known.popitem(last=False)
        return info


def _looked_at(task: asyncio.Task[TopicInfo]) -> None:
    """Whoever waited may be gone: an error that nobody took is nobody's loss."""
    if not task.cancelled():
        task.exception()
