"""Reports topics that a member of a group has named and that do not exist: without a word it would wait for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from comet import limits
from comet.client.client import Client
from comet.errors import CometError
from comet.types import TopicPartition

log = logging.getLogger("comet")


async def report_missing(
    client: Client, group: str, topics: Sequence[str], assigned: Callable[[], set[TopicPartition]]
) -> None:
    """Logs at once, and again now and then, which of these topics are missing; returns when none is. Looks up only
    topics of which the member has no partition."""
    while unread := sorted(set(topics) - {topic for topic, _ in assigned()}):
        try:
            found = await client.fetch(unread)
        except CometError as error:
            log.info("comet: group %s: cannot look up its topics: %s", group, error, extra={"group": group})
        else:
            missing = [topic for topic in unread if topic not in found]
            if not missing:
                return
            log.warning("comet: group %s waits: %s", group, waits_for(missing), extra={"group": group})
        await asyncio.sleep(limits.MISSING_TOPIC_REPORT_MS / 1000)


def waits_for(missing: Sequence[str]) -> str:
    """The missing topics, and what to do.

    >>> waits_for(["orders"])
    "topic 'orders' does not exist. Create it, e.g. with: comet topic create orders"
    >>> waits_for(["a", "b"])
    "topics 'a', 'b' do not exist. Create them, e.g. with: comet topic create NAME"
    """
    names = ", ".join(map(repr, missing))
    if len(missing) == 1:
        return f"topic {names} does not exist. Create it, e.g. with: comet topic create {missing[0]}"
    return f"topics {names} do not exist. Create them, e.g. with: comet topic create NAME"
