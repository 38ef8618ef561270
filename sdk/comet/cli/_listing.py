"""Figures of lists that are asked of each topic or group by itself, a few at once; and names by patterns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, TypeVar

from comet.cli._output import note
from comet.errors import CometError, InvalidArgument, TopicNotFound
from comet.types import is_internal_topic

if TYPE_CHECKING:
    from comet import Admin
    from comet.entities import TopicTotals
    from comet.types import PartitionLag

T = TypeVar("T")

FIGURES_MAX: Final = 200  # topics or groups of a list; the rest is shown without figures
AT_ONCE: Final = 16


async def topic_totals(admin: Admin, names: Sequence[str]) -> Mapping[str, TopicTotals]:
    """Records and bytes of topics, by name; without those that cannot be asked."""

    async def one(name: str) -> TopicTotals:
        return (await admin.describe_topic(name)).totals

    return await _by_name(one, names)


async def group_lags(admin: Admin, names: Sequence[str]) -> Mapping[str, Sequence[PartitionLag]]:
    """The lag of groups by partition, by name; likewise."""

    async def one(name: str) -> Sequence[PartitionLag]:
        return (await admin.describe_group(name)).lags

    return await _by_name(one, names)


async def _by_name(ask: Callable[[str], Awaitable[T]], names: Sequence[str]) -> Mapping[str, T]:
    import asyncio

    gate = asyncio.Semaphore(AT_ONCE)
    found: dict[str, T] = {}

    async def one(name: str) -> None:
        async with gate:
            try:
                found[name] = await ask(name)
            except CometError:
                return  # deleted meanwhile, or its brokers do not answer

    await asyncio.gather(*map(one, names[:FIGURES_MAX]))
    return found


def note_left_out(listed: int, nouns: str, figures: str, command: str) -> None:
    """Says that some of a list are shown without figures."""
    if listed > FIGURES_MAX:
        note(f"{figures} of the first {FIGURES_MAX} {nouns} alone; of another one: {command}")


def is_pattern(name: str) -> bool:
    """Whether a name has a wildcard, which no topic has in its name."""
    return any(sign in name for sign in "*?[")


def matching(names: Sequence[str], topics: Sequence[str]) -> list[str]:
    """The topics that names and patterns choose, each once. A pattern chooses no internal topic. Raises TopicNotFound
    for a name without topic.

    >>> matching(["b", "test-*"], ["a", "b", "test-1", "test-2", "__x"]), matching(["*"], ["a", "__x"])
    (['b', 'test-1', 'test-2'], ['a'])
    """
    found: dict[str, None] = {}
    for name in names:
        if not name:
            raise InvalidArgument("a topic name is empty")
        if is_pattern(name):
            chosen = [topic for topic in topics if not is_internal_topic(topic) and fnmatchcase(topic, name)]
        else:
            chosen = [topic for topic in topics if topic == name]
        if not chosen:
            raise TopicNotFound(
                f"no topic matches {name!r}" if is_pattern(name) else f"topic {name!r} does not exist",
                details={"hint": "list topics: comet topic list"},
            )
        found |= dict.fromkeys(chosen)
    return list(found)
