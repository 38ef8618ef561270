"""What the driver asks brokers: which partitions there are, and how far they reach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import comet
from comet import patterns
from comet.errors import CometError, InvalidArgument, TopicNotFound
from comet.spark.options import EARLIEST, LATEST, Ends, SourceOptions
from comet.spark.planning import Mark, Marks
from comet.types import AtTime, StartLike, TopicPartition

AT_ONCE: Final = 64  # questions to brokers
_clients: dict[tuple[str, int], Cluster] = {}


class Cluster:
    """One for a process and cluster. Made and used on the background loop."""

    def __init__(self, options: SourceOptions) -> None:
        self.admin = comet.Admin(options.bootstrap, timeout_ms=options.timeout_ms, name="spark")
        self.reader = comet.Reader(options.bootstrap, timeout_ms=options.timeout_ms, name="spark")

    @classmethod
    def of(cls, options: SourceOptions) -> Cluster:
        key = (options.bootstrap, options.timeout_ms)
        if key not in _clients:
            _clients[key] = cls(options)
        return _clients[key]

    # ---- which partitions

    async def places(self, options: SourceOptions) -> list[TopicPartition]:
        """All that the options name, as they are now. Raises TopicNotFound for a name that stands for nothing."""
        if options.assigned:
            return sorted(TopicPartition(topic, one) for topic, each in options.assigned.items() for one in each)
        topics = {topic.name: topic for topic in await self.admin.list_topics()}
        if options.pattern:
            matches = patterns.compiled(options.pattern).fullmatch
            names = [name for name in topics if matches(name) and not name.startswith("__")]
        else:
            names = list(options.topics)
            missing = [name for name in names if name not in topics]
            if missing:
                raise TopicNotFound(f"there is no topic {missing[0]!r} to read", details={"topic": missing[0]})
        return sorted(TopicPartition(name, one.index) for name in names for one in topics[name].partitions)

    # ---- how far they reach

    async def marks(
        self, places: list[TopicPartition], options: SourceOptions, at: StartLike
    ) -> dict[TopicPartition, Mark]:
        """Where a position is in each of them, with the epoch of the record before it."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def find(place: TopicPartition) -> Mark:
            async with gate:
                found = await self.reader.fetch(
                    place.topic, place.partition, at, records_max=1, bytes_max=1, isolation=_isolation(options)
                )
            if found.first_offset == found.next_offset and found.epoch is not None:
                return Mark(found.first_offset, found.epoch)
            return Mark(found.first_offset)

        return dict(zip(places, await asyncio.gather(*map(find, places)), strict=True))

    async def ends(
        self, places: list[TopicPartition], options: SourceOptions, where: Ends, time_ms: int | None
    ) -> dict[TopicPartition, Mark]:
        """What an option says that a read begins or ends at."""
        if time_ms is not None:
            return await self.marks(places, options, AtTime(time_ms * 1000))
        if not isinstance(where, Mapping):
            return await self.marks(places, options, where)
        named = {TopicPartition(topic, one): at for topic, each in where.items() for one, at in each.items()}
        strangers = sorted(named.keys() - set(places))
        if strangers or len(named) < len(places):
            place = strangers[0] if strangers else min(set(places) - named.keys())
            fault = f"{place.topic}/{place.partition} {'is not read' if strangers else 'has none'}"
            raise InvalidArgument(f"offsets are given for every partition that is read, and for no other: {fault}")
        found: dict[TopicPartition, Mark] = {place: Mark(at) for place, at in named.items()}
        for sign, position in ((EARLIEST, "earliest"), (LATEST, "latest")):
            found |= await self.marks([place for place, at in named.items() if at == sign], options, position)
        return found

    async def wait(self, after: Marks, options: SourceOptions) -> None:
        """Until there is something behind one of these, or `wait_ms` are over."""
        if not after or not options.wait_ms:
            return
        waiting = [
            asyncio.ensure_future(
                self.reader.fetch(
                    place.topic, place.partition, mark.offset, records_max=1, bytes_max=1,
                    wait_ms=options.wait_ms, isolation=_isolation(options),
                )
            )
            for place, mark in list(after.items())[:AT_ONCE]
        ]  # fmt: skip
        try:
            until = time.monotonic() + options.wait_ms / 1000
            left: set[asyncio.Future[comet.Fetched]] = set(waiting)
            while left:
                done, left = await asyncio.wait(
                    left, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
                if not done or any(one.exception() is None and one.result().batches for one in done):
                    return
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    # ---- what groups see of it

    async def report(self, group: str, marks: Marks) -> CometError | None:
        """Commits how far a stream has come, for those who look at lags. What goes wrong does not stop the stream."""
        try:
            done = await self.admin.commit_positions(group, {place: mark.offset for place, mark in marks.items()})
        except CometError as error:
            return error
        return next((one.error for one in done if one.error is not None), None)


def _isolation(options: SourceOptions) -> Any:
    return "committed" if options.committed else "uncommitted"
