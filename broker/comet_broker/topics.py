"""The topics this broker holds, kept in step with the metadata store.

The store says what shall be; this table follows it by a watch, opens and closes logs, and knows which revision it
has caught up with, so that an admin call can wait until its own change is visible here. A topic is deleted from
disk only when the store holds a tombstone with its id: a store that has lost its memory costs no data, the folders
it does not know are kept and reported.

Keys: topics/<name> is the topic, deleted/<topic id> is the tombstone of one whose files may go.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from comet.errors import CometError, DiskFull, LimitExceeded, LogFailed, PartitionNotFound, TopicNotFound, Unavailable
from comet.types import PartitionInfo, TopicConfig, TopicInfo
from comet_broker import limits
from comet_broker.core.tail import TailBudget
from comet_broker.metadata.store import Compare, Delete, MetadataStore, WatchEvent
from comet_broker.partition import Partition
from comet_broker.ports import Clock, Files, Worker
from comet_broker.storage.log import Log, LogIdentity
from comet_broker.tasks import Tasks
from comet_broker.waiting import Progress

log = logging.getLogger(__name__)

TOPICS: Final = "topics/"
DELETED: Final = "deleted/"
FOLDER: Final = "topics"


class TopicSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A topic as the metadata store keeps it."""

    id: str  # 32 hex digits
    partitions: int
    created_us: int
    config: TopicConfig

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> TopicSpec:
        return msgspec.json.decode(data, type=cls)


@dataclass(slots=True)
class Topic:
    name: str
    spec: TopicSpec
    partitions: list[Partition]

    def info(self, broker_id: int) -> TopicInfo:
        return TopicInfo(
            name=self.name,
            id=bytes.fromhex(self.spec.id),
            partitions=tuple(
                PartitionInfo(p.index, broker_id, p.leader_epoch, (broker_id,), (broker_id,)) for p in self.partitions
            ),
            config=self.spec.config,
            created_us=self.spec.created_us,
        )


class TopicTable:
    """Owned by the broker. Changed only by `apply`, which runs one batch of changes at a time."""

    def __init__(
        self,
        *,
        files: Files,
        store: MetadataStore,
        clock: Clock,
        worker: Worker,
        tasks: Tasks,
        tail_budget: TailBudget,
    ) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_handle: dict[int, Partition] = {}
        self.applied = Progress()
        self.problems: dict[str, CometError] = {}  # topics that could not be opened or changed as the store says
        self.unknown_folders: list[str] = []
        self._wanted: dict[str, TopicSpec] = {}  # the specs of those
        self._changing = asyncio.Lock()
        self._files = files
        self._store = store
        self._clock = clock
        self._worker = worker
        self._tasks = tasks
        self._tail_budget = tail_budget
        self._next_handle = 1

    # ---- looking up

    def topic(self, name: str) -> Topic:
        topic = self.by_name.get(name)
        if topic is None:
            self.check_openable(name)
            raise TopicNotFound(f"there is no topic {name!r}; create it first (comet topic create {name})")
        return topic

    def check_openable(self, name: str) -> None:
        """Raises if the topic exists but could not be opened here: that is no reason for a client to give it up."""
        if name in self._wanted and name not in self.by_name:
            raise Unavailable(
                f"topic {name!r} cannot be opened now: {self.problems[name].message}", retry_after_ms=1000
            )

    def partition(self, name: str, index: int) -> Partition:
        topic = self.topic(name)
        if index >= len(topic.partitions):
            raise PartitionNotFound(
                f"topic {name!r} has partitions 0 to {len(topic.partitions) - 1}, not {index}",
                details={"partitions": str(len(topic.partitions))},
            )
        return topic.partitions[index]

    # ---- following the store

    async def load(self) -> int:
        """Opens everything the store knows; returns the revision that was read."""
        tombstones = await self._store.range(DELETED)
        for item in tombstones.items:
            await self._bury(item.key.removeprefix(DELETED))
        listing = await self._store.range(TOPICS)
        for item in listing.items:
            await self._try(item.key.removeprefix(TOPICS), TopicSpec.decode(item.value))
        known = {TopicSpec.decode(item.value).id for item in listing.items}
        self.unknown_folders = [name for name in self._files.list(FOLDER) if name not in known]
        for name in self.unknown_folders:
            log.warning("folder %s/%s belongs to no topic in the metadata store; it is kept", FOLDER, name)
        self.applied.reach(listing.revision)
        return listing.revision

    async def follow(self, revision: int) -> None:
        """Applies every change after `revision`, for ever."""
        try:
            async for events in self._store.watch(TOPICS, revision + 1):
                await self.apply(events)
        finally:
            self.applied.fail(Unavailable("this broker no longer follows the metadata store"))

    async def apply(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            name = event.key.removeprefix(TOPICS)
            await self._try(name, None if event.item is None else TopicSpec.decode(event.item.value))
        self.applied.reach(events[-1].revision)

    async def retry(self) -> None:
        """Tries again what could not be done, for example because the disk was full."""
        for name, spec in list(self._wanted.items()):
            await self._try(name, spec)

    async def _try(self, name: str, spec: TopicSpec | None) -> None:
        """Brings one topic to what the store says. One that cannot be opened must not stop the others."""
        async with self._changing:
            self.problems.pop(name, None)
            self._wanted.pop(name, None)
            try:
                if spec is None:
                    await self._delete(name)
                else:
                    await self._put(name, spec)
            except CometError as error:
                self.problems[name] = error
            except OSError as error:
                self.problems[name] = storage_error(error)
            if name in self.problems and spec is not None:
                self._wanted[name] = spec
                log.error("topic %s cannot be brought to what the metadata store says: %s", name, self.problems[name])

    async def _put(self, name: str, spec: TopicSpec) -> None:
        topic = self.by_name.get(name)
        if topic is not None and topic.spec.id != spec.id:
            await self._delete(name)  # deleted and made again between two looks
            topic = None
        if topic is None:
            topic = Topic(name, spec, [])
        topic.partitions += await self._open_all(topic, spec)
        if spec.config != topic.spec.config:
            for partition in topic.partitions:
                partition.configure(spec.config)
        topic.spec = spec
        self.by_name[name] = topic

    async def _open_all(self, topic: Topic, spec: TopicSpec) -> list[Partition]:
        """Opens the partitions that are not open yet: all of them, or none."""
        opened: list[Partition] = []
        try:
            for index in range(len(topic.partitions), spec.partitions):
                opened.append(await self._open(topic, spec, index))  # noqa: PERF401 - what is open must be closed on failure
        except (CometError, OSError):
            for partition in opened:
                del self.by_handle[partition.handle]
                await partition.close(Unavailable("the topic could not be opened"))
            raise
        return opened

    async def _open(self, topic: Topic, spec: TopicSpec, index: int) -> Partition:
        if len(self.by_handle) >= limits.PARTITIONS_MAX:
            raise LimitExceeded(f"this broker holds at most {limits.PARTITIONS_MAX} partitions")
        identity = LogIdentity(bytes.fromhex(spec.id), index)
        folder = f"{FOLDER}/{spec.id}/{index}"
        storage = await self._worker.run(lambda: Log.open(self._files, folder, identity, spec.config, self._clock))
        partition = Partition(
            self._next_handle,
            topic.name,
            identity.topic_id,
            index,
            storage,
            clock=self._clock,
            worker=self._worker,
            tasks=self._tasks,
            tail_budget=self._tail_budget,
        )
        self._next_handle += 1
        self.by_handle[partition.handle] = partition
        return partition

    async def _delete(self, name: str) -> None:
        topic = self.by_name.pop(name, None)
        if topic is None:
            return
        gone = TopicNotFound(f"topic {name!r} was deleted")
        for partition in topic.partitions:
            del self.by_handle[partition.handle]
            await partition.close(gone)
        await self._bury(topic.spec.id)

    async def _bury(self, topic_id: str) -> None:
        """Removes the files of a deleted topic, then its tombstone; in this order, so that a crash repeats it."""
        tombstone = await self._store.get(DELETED + topic_id)
        if tombstone is None:
            log.warning("topic %s is gone from the metadata store without a tombstone; its files are kept", topic_id)
            return
        folder = f"{FOLDER}/{topic_id}"
        if self._files.exists(folder):
            await self._worker.run(lambda: self._files.remove_folder(folder))
        await self._store.transact([Compare(tombstone.key, tombstone.mod_revision)], [Delete(tombstone.key)])

    async def close(self, error: CometError) -> None:
        for partition in list(self.by_handle.values()):
            await partition.close(error)


def storage_error(error: OSError) -> CometError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the broker's disk is full; free some space, it then goes on by itself", retry_after_ms=1000)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return LimitExceeded("the broker has no file descriptors left: raise its limit", retry_after_ms=1000)
    return LogFailed(f"the broker's disk failed: {error.strerror or error}")
