"""The topics that this broker knows and the partitions that it holds, kept in step with the cluster view.

The metadata store holds the target state; this table follows the broker's view of it. A new leader of an open partition
is applied as soon as the view moves; opening, closing and deleting logs, which wait for the disk, follow in order. A
topic is deleted from disk only when the store holds a tombstone with its id, and a partition only when the store says
that other brokers hold it: a store that has lost its data costs no records, since folders that it does not know are
kept and reported.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from comet.entities import PartitionInfo, ReplicaConflict, TopicInfo
from comet.errors import (
    CometError,
    DiskFull,
    Internal,
    LimitExceeded,
    LogFailed,
    PartitionNotFound,
    TopicNotFound,
    Unavailable,
)
from comet.settings.topic import TopicConfig
from comet_broker import limits
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import (
    BROKERS,
    DELETED,
    NO_BROKER,
    PARTITIONS,
    TOPICS,
    PartitionId,
    PartitionState,
    Tombstone,
    TopicSpec,
    Versioned,
    topic_key,
)
from comet_broker.core.recovery import CopyInventory, NamedSpec
from comet_broker.metadata.store import Compare, Put, StoreUnavailable
from comet_broker.partitions.context import PartitionContext
from comet_broker.partitions.inventory import checksums_at, copy_of, epoch_starts, extents_at, read_checksums
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.spec_file import forget_spec, read_spec, write_spec
from comet_broker.ports import Files
from comet_broker.storage.log import Log, LogIdentity, write_marks
from comet_broker.waiters import Progress

log = logging.getLogger(__name__)

FOLDER: Final = "topics"
TOPIC_WAIT_S_MAX: Final = 5.0  # the longest wait of a call for a topic that is in the store and not in the view yet


@dataclass(slots=True)
class Topic:
    """A topic, and its partitions on this broker."""

    name: str
    spec: TopicSpec
    partitions: dict[int, Partition] = field(default_factory=dict)
    remembered: NamedSpec | None = None  # as written beside the logs


class TopicTable:
    """Owned by the broker. Only `_apply_topic` changes `by_name` and its topics, one change at a time."""

    def __init__(
        self, *, files: Files, view: ClusterView, context: PartitionContext, changed: Callable[[Partition], None]
    ) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_handle: dict[int, Partition] = {}
        self.moves = 0  # of the view, since the start
        self.applied = Progress()  # the revision up to which the view is applied here
        self.problems: dict[str, CometError] = {}  # topics that could not be opened or changed
        self.unknown_folders: list[str] = []
        self._by_id: dict[PartitionId, Partition] = {}
        self._files = files
        self._view = view
        self._context = context
        self._changed = changed  # called when a partition's leader changes, or whether it is here
        self._ends: dict[PartitionId, int] = {}  # of logs that are being reopened, when they were closed
        self._short: set[PartitionId] = set()  # logs that were short when their inventory was taken
        self._next_handle = 1
        self._due: dict[str, None] = {}  # topics to bring to the view's state
        self._deleted_ids: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._busy = False  # with those
        self._changing = asyncio.Lock()
        self._closing = False

    # ---- looking up

    def topic(self, name: str) -> Topic:
        """The topic on this broker; raises TopicNotFound, or Unavailable for one that is not ready yet."""
        topic = self.by_name.get(name)
        if topic is not None and self._view.state.topics.get(name) is not None:
            return topic
        self.spec(name)
        raise Unavailable(f"topic {name!r} is being opened here", retry_after_ms=20)

    def spec(self, name: str) -> TopicSpec:
        """The cluster's spec of a topic, wherever its partitions are."""
        found = self._view.state.topics.get(name)
        if found is None:
            raise TopicNotFound(f"topic {name!r} does not exist; create it first (comet topic create {name})")
        problem = self.problems.get(name)
        if problem is not None and name not in self.by_name:
            # Temporary: clients must not give the topic up.
            raise Unavailable(f"topic {name!r} cannot be opened now: {problem.message}", retry_after_ms=1000)
        return found.value

    def exists(self, name: str) -> bool:
        """Whether the view has the topic; else `wait_for` it."""
        return name in self._view.state.topics

    async def wait_for(self, name: str) -> None:
        """Waits a moment for a topic that the metadata store has and the view has not: it may just have been created
        through another broker."""
        try:
            async with asyncio.timeout(TOPIC_WAIT_S_MAX):
                item = await self._context.store.get(topic_key(name))
                if item is not None:
                    await self.applied.wait(item.mod_revision)
        except (StoreUnavailable, TimeoutError, ValueError):
            return

    def partition(self, name: str, index: int) -> Partition:
        """A partition on this broker, to read or write."""
        spec = self.spec(name)
        if index >= spec.partitions:
            raise PartitionNotFound(
                f"topic {name!r} has partitions 0 to {spec.partitions - 1}, not {index}",
                details={"partitions": str(spec.partitions)},
            )
        topic = self.by_name.get(name)
        partition = None if topic is None else topic.partitions.get(index)
        if partition is not None and topic is not None and topic.spec.id == spec.id:
            return partition
        found = self._view.state.partitions.get((spec.id, index))
        if found is None or self._context.me in found.value.holders:
            raise Unavailable(f"partition {index} of {name!r} is being opened here", retry_after_ms=20)
        leader = found.value.leader
        raise PartitionNotFound(
            f"this broker holds no replica of partition {index} of {name!r}",
            details={} if leader == NO_BROKER else self._context.whereabouts(leader),
        )

    def leading(self, tp: PartitionId, epoch: int) -> Partition:
        """A partition that this broker leads in that epoch; raises a CometError."""
        partition = self._by_id.get(tp)
        if partition is None:
            raise Unavailable("the partition is not open here yet", retry_after_ms=50)
        if partition.leadership is None:
            raise partition.not_leader()
        if partition.leader_epoch != epoch:
            raise Unavailable(f"{partition} is in epoch {partition.leader_epoch} here, not {epoch}", retry_after_ms=50)
        return partition

    def is_open(self, tp: PartitionId) -> bool:
        return tp in self._by_id

    def state_of(self, topic_id: str, index: int) -> PartitionState | None:
        found = self._view.state.partitions.get((topic_id, index))
        return None if found is None else found.value

    def info(self, name: str, spec: TopicSpec) -> TopicInfo:
        """The topic as clients see it, from the view alone."""
        partitions = []
        for index in range(spec.partitions):
            state = self.state_of(spec.id, index)
            if state is None:
                partitions.append(PartitionInfo(index, None, 0, (), ()))
            else:
                in_sync = tuple(sorted(state.in_sync))
                conflicts = self._conflicts(spec.id, index, state)
                leader = None if state.leader == NO_BROKER else state.leader
                partitions.append(
                    PartitionInfo(index, leader, state.epoch, state.replicas, in_sync, conflicts, state.target)
                )
        return TopicInfo(
            name=name,
            id=bytes.fromhex(spec.id),
            partitions=tuple(partitions),
            config=spec.config,
            created_us=spec.created_us,
            sources=spec.sources,
        )

    def _conflicts(self, topic_id: str, index: int, state: PartitionState) -> tuple[ReplicaConflict, ...]:
        known = self._view.state.conflicts
        if not known:
            return ()
        found = [
            (broker, known[broker, topic_id, index].value)
            for broker in state.holders
            if (broker, topic_id, index) in known
        ]
        return tuple(
            ReplicaConflict(broker, one.leader, one.epoch, one.offset, one.high_watermark, one.log_end, one.problem)
            for broker, one in found
        )

    # ---- following the view

    async def load(self) -> None:
        """Opens all logs that the view places here."""
        state = self._view.state
        for topic_id in list(state.deleted):
            await self._delete_files(topic_id)
        for name in list(state.topics):
            await self._try(name)
        known = {found.value.id for found in state.topics.values()} | set(state.deleted)
        self.unknown_folders = [name for name in self._files.list(FOLDER) if name not in known]
        for name in self.unknown_folders:
            log.warning("folder %s/%s belongs to no topic in the metadata store and is kept", FOLDER, name)
        self.applied.reach(state.revision)

    def view_moved(self, keys: Sequence[str]) -> None:
        """Follows a change of these keys in the view. Called in the order of its revisions."""
        self.moves += 1
        state = self._view.state
        names: dict[str, str] = {}  # filled when needed
        for key in keys:
            try:
                self._key_moved(key, names)
            except Exception as error:  # noqa: BLE001 - an error at one key must not stop the others
                self._context.tasks.report(f"a change of {key}", error)
        if self._due or self._deleted_ids or self._busy:
            self._wake.set()
        else:
            self.applied.reach(state.revision)

    def _key_moved(self, key: str, names: dict[str, str]) -> None:
        state = self._view.state
        if key.startswith(PARTITIONS):
            topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
            tp = (topic_id, int(index))
            found = state.partitions.get(tp)
            partition = self._by_id.get(tp)
            if partition is not None and found is not None:
                self._apply(partition, found)
            holds = found is not None and self._context.me in found.value.holders
            if holds != (partition is not None):
                names.update({} if names else {found.value.id: name for name, found in state.topics.items()})
                if topic_id in names:
                    self._due[names[topic_id]] = None
        elif key.startswith(TOPICS):
            self._due[key.removeprefix(TOPICS)] = None
        elif key.startswith(DELETED):
            self._deleted_ids[key.removeprefix(DELETED)] = None
        elif key.startswith(BROKERS):
            for partition in list(self._by_id.values()):
                self._follow(partition)  # its leader may have another address now

    def _apply(self, partition: Partition, found: Versioned[PartitionState]) -> None:
        try:
            partition.apply(found)
        except Exception as error:  # noqa: BLE001 - the view moves for all partitions
            self._context.halt(partition, error)
        self._follow(partition)

    def _follow(self, partition: Partition) -> None:
        """Makes the replicator follow the partition's leader, or stop."""
        try:
            self._changed(partition)
        except Exception as error:  # noqa: BLE001 - as above
            self._context.halt(partition, error)

    async def follow(self) -> None:
        """Applies the view, until the broker stops."""
        try:
            await self._context.tasks.persist(self._follow_view, "follow topics")
        finally:
            self.applied.fail(Unavailable("this broker no longer follows the metadata store"))

    async def _follow_view(self) -> None:
        while True:
            if not self._busy:  # else an error interrupted the last change
                await self._wake.wait()
            self._wake.clear()
            revision = self._view.state.revision
            self._busy = True
            while self._due or self._deleted_ids:
                if self._due:
                    await self._try(_pop(self._due))
                else:
                    await self._delete_files(_pop(self._deleted_ids))
            self._busy = False
            self.applied.reach(revision)

    async def retry(self) -> None:
        """Retries what failed, for example because the disk was full."""
        for name in list(self.problems):
            await self._try(name)
        for topic_id in list(self._view.state.deleted):
            await self._delete_files(topic_id)

    async def _try(self, name: str) -> None:
        """Brings one topic to the view's state. A topic that cannot be opened must not stop the others."""
        async with self._changing:
            if self._closing:
                return
            self.problems.pop(name, None)
            try:
                await self._apply_topic(name)
            except CometError as error:
                self.problems[name] = error
            except OSError as error:
                self.problems[name] = storage_error(error)
                if isinstance(self.problems[name], LogFailed):
                    await self._context.missing.note_lost(counted=False)
            except Exception as error:  # noqa: BLE001 - the other topics are still followed
                self._context.tasks.report(f"topic {name}", error)
                self.problems[name] = Internal(f"topic {name!r} failed on this broker: {error!r}")
            if name in self.problems:
                log.error(
                    "topic %s cannot be brought to the cluster's state: %s",
                    name,
                    self.problems[name],
                    extra={"topic": name},
                )

    async def _apply_topic(self, name: str) -> None:
        found = self._view.state.topics.get(name)
        topic = self.by_name.get(name)
        if topic is not None and (found is None or found.value.id != topic.spec.id):
            await self._close_topic(topic)  # deleted, or deleted and recreated since the last look
            topic = None
        if found is None:
            return
        spec = found.value
        if topic is None:
            # Known from here on: if one log cannot be opened, the others are not opened a second time.
            topic = self.by_name[name] = Topic(name, spec)
        if spec.config != topic.spec.config:  # first: an unopenable log must not delay the other logs
            for partition in topic.partitions.values():
                partition.configure(spec.config)
        topic.spec = spec
        await self._open_all(topic, spec)
        await self._remember(topic)

    async def _remember(self, topic: Topic) -> None:
        """Writes a copy of the topic's spec beside its logs, in case the metadata store loses it."""
        named = NamedSpec(topic.name, topic.spec)
        if topic.remembered == named or not topic.partitions:
            return
        folder = f"{FOLDER}/{topic.spec.id}"
        try:
            if await self._context.worker.run(lambda: read_spec(self._files, folder)) != named:
                await self._context.worker.run(lambda: write_spec(self._files, folder, named))
        except OSError as error:
            log.warning(
                "the settings of %s could not be written beside its logs: %s",
                topic.name,
                error,
                extra={"topic": topic.name},
            )
        else:
            topic.remembered = named

    async def inventory(self) -> tuple[list[CopyInventory], list[NamedSpec]]:
        """The contents of the folder: open logs as they are, others are opened to be read."""
        async with self._changing:
            copies = [await self._copy_of(partition) for partition in list(self.by_handle.values())]
            specs = []
            for topic_id in self._files.list(FOLDER):
                named = await self._context.worker.run(lambda: read_spec(self._files, f"{FOLDER}/{topic_id}"))  # noqa: B023
                if named is not None and named.spec.id == topic_id:
                    specs.append(named)
                for name in self._files.list(f"{FOLDER}/{topic_id}"):
                    tp = (topic_id, int(name)) if name.isdecimal() else None
                    if tp is not None and tp not in self._by_id:
                        config = TopicConfig() if named is None else named.spec.config
                        copies.append(await self._context.worker.run(lambda: self._inventory_of(tp, config)))  # noqa: B023
            return copies, specs

    async def _copy_of(self, partition: Partition) -> CopyInventory:
        storage = partition.log
        found = await checksums_at(storage, epoch_starts(storage), self._context.worker)
        return copy_of(partition.tp, storage, found)

    def _inventory_of(self, tp: PartitionId, config: TopicConfig) -> CopyInventory:
        """Opens a log and closes it again. Blocks."""
        storage = self._open_log(tp, config)
        try:
            if storage.recovered.short:
                self._short.add(tp)
            extents = extents_at(storage, epoch_starts(storage))
            found = read_checksums(extents)
            for extent in extents.values():
                extent.release()
            return copy_of(tp, storage, found)
        finally:
            storage.close()

    async def _open_all(self, topic: Topic, spec: TopicSpec) -> None:
        """Opens the logs that are missing here; closes and deletes those that moved to other brokers."""
        failed: Exception | None = None
        for index in range(spec.partitions):
            state = self.state_of(spec.id, index)
            partition = topic.partitions.get(index)
            if state is None:
                continue  # not placed yet
            if self._context.me in state.holders:
                if partition is None:
                    try:
                        partition = topic.partitions[index] = await self._open(topic, spec, index)
                    except Exception as error:  # noqa: BLE001 - raised below, after the others
                        log.error(
                            "%s/%d cannot be opened: %s",
                            topic.name,
                            index,
                            error,
                            extra={"topic": topic.name, "partition": index},
                        )
                        self._context.unopened((spec.id, index), str(error))
                        failed = failed or error
                        continue
                    now = self.state_of(spec.id, index)
                    if now is not None and self._context.me not in now.holders:
                        await self._leave(topic, partition)  # it was moved on while its log was opened
            elif partition is not None:
                await self._leave(topic, partition)
            else:
                self._forget((spec.id, index))
        if failed is not None:
            raise failed

    async def _open(self, topic: Topic, spec: TopicSpec, index: int) -> Partition:
        if len(self.by_handle) >= limits.PARTITIONS_MAX:
            raise LimitExceeded(f"this broker holds at most {limits.PARTITIONS_MAX} partitions")
        tp = (spec.id, index)
        storage = await self._context.worker.run(lambda: self._open_log(tp, spec.config))
        partition = Partition(self._next_handle, topic.name, bytes.fromhex(spec.id), index, storage, self._context)
        self._next_handle += 1
        self.by_handle[partition.handle] = partition
        self._by_id[tp] = partition
        short = storage.recovered.short or tp in self._short
        end = self._ends.get(tp, 0)
        self._forget(tp)
        if short and self._context.missing.lost_here:  # this broker counts as one with all records
            # The epoch may have given out the offsets that are missing: only a new registration makes a new epoch.
            missing = LogFailed(
                f"its log ended at {end or 'a later offset'} when it was closed, and at {storage.log_end} when it was"
                " opened: records are missing on this broker's disk; restart the broker"
            )
            storage.state.fail(missing)
            self._context.halt(partition, missing)
        elif storage.lost:
            self._context.disqualify(partition)
        else:
            self._context.requalify(partition)
        found = self._view.state.partitions.get(tp)
        if found is not None:
            self._apply(partition, found)
        return partition

    def _open_log(self, tp: PartitionId, config: TopicConfig) -> Log:
        """Blocks."""
        identity, folder = LogIdentity(bytes.fromhex(tp[0]), tp[1]), f"{FOLDER}/{tp[0]}/{tp[1]}"
        note_missing = partial(self._context.missing.note_missing, counted=tp in self._ends)
        closed_at = self._ends.get(tp, 0)
        return Log.open(self._files, folder, identity, config, self._context.clock, note_missing, closed_at=closed_at)

    async def _leave(self, topic: Topic, partition: Partition) -> None:
        """Deletes the files of a partition that other brokers hold now."""
        await self._close(partition, partition.not_leader(f"{partition} was reassigned to other brokers"))
        del topic.partitions[partition.index]
        folder = f"{FOLDER}/{topic.spec.id}/{partition.index}"
        await self._context.worker.run(lambda: self._files.remove_folder(folder))
        if not topic.partitions:
            topic.remembered = None
            await self._context.worker.run(lambda: forget_spec(self._files, f"{FOLDER}/{topic.spec.id}"))
        log.info("%s was reassigned, and its files are deleted", partition)

    async def _close(self, partition: Partition, error: CometError) -> None:
        self.by_handle.pop(partition.handle, None)
        self._by_id.pop((partition.topic_id.hex(), partition.index), None)
        try:
            await partition.close(error)
        except Exception as caught:  # noqa: BLE001 - it is gone from the tables, and the others are still to be closed
            self._context.tasks.report(f"closing {partition}", caught)
        self._follow(partition)

    async def reopen(self, partition: Partition) -> bool:
        """Reopens the log of a failed partition, as a restart would; False if it is not here any more. Raises a
        CometError where only a restart helps."""
        async with self._changing:
            topic = self.by_name.get(partition.topic)
            if self._closing or topic is None or topic.partitions.get(partition.index) is not partition:
                return False
            if partition.log.failed is not None:
                raise partition.log.failed
            partition.log.durability.note_high_watermark(partition.committed)  # readers have seen records up to there
            self._ends[partition.tp] = partition.log.log_end
            await self._close(partition, Unavailable(f"{partition} is being reopened", retry_after_ms=100))
            del topic.partitions[partition.index]
            if not partition.log.durability.closed_clean:  # a loss from here on may leave no trace, or does already
                await self._context.missing.note_lost(counted=True)
        await self._try(partition.topic)
        return True

    def _forget(self, tp: PartitionId) -> None:
        """Its log is another one, or counts for nothing, when it is here again."""
        self._ends.pop(tp, None)
        self._short.discard(tp)

    async def _close_topic(self, topic: Topic) -> None:
        del self.by_name[topic.name]
        for index in range(topic.spec.partitions):
            self._forget((topic.spec.id, index))
        gone = TopicNotFound(f"topic {topic.name!r} was deleted")
        for partition in topic.partitions.values():
            await self._close(partition, gone)
        await self._delete_files_locked(topic.spec.id)

    # ---- deleted topics

    async def _delete_files(self, topic_id: str) -> None:
        async with self._changing:
            if all(topic.spec.id != topic_id for topic in self.by_name.values()):
                await self._delete_files_locked(topic_id)

    async def _delete_files_locked(self, topic_id: str) -> None:
        """Removes a deleted topic's files, then this broker from its tombstone. In this order, a crash repeats the
        deletion."""
        key = DELETED + topic_id
        folder = f"{FOLDER}/{topic_id}"
        try:
            while True:
                item = await self._context.store.get(key)
                if item is None:
                    if self._files.exists(folder):
                        log.warning(
                            "topic %s is missing in the metadata store, without a tombstone; it is kept",
                            topic_id,
                            extra={"topic_id": topic_id},
                        )
                    return
                tombstone = Tombstone.decode(item.value)
                if self._files.exists(folder):
                    await self._context.worker.run(lambda: self._files.remove_folder(folder))
                left = tuple(broker for broker in tombstone.brokers if broker != self._context.me)
                if left == tombstone.brokers:
                    return
                # The controller removes the tombstone when all brokers have acted on it and nothing else of the topic
                # is left.
                update = Put(key, msgspec.structs.replace(tombstone, brokers=left).encode())
                result = await self._context.store.transact([Compare(key, item.mod_revision)], [update])
                if result.applied:
                    return
        except StoreUnavailable as error:
            log.info("deletion of topic %s is not complete yet: %s", topic_id, error, extra={"topic_id": topic_id})
        except OSError as error:
            log.error(
                "cannot remove the files of deleted topic %s now: %s", topic_id, error, extra={"topic_id": topic_id}
            )
        except Exception as error:  # noqa: BLE001 - the others are still to be deleted
            self._context.tasks.report(f"deletion of topic {topic_id}", error)

    async def note_watermarks(self) -> None:
        """Writes the high watermarks, so that they survive a kill though nothing is synced; see core.conflicts."""
        due = [partition.log for partition in self.by_handle.values() if partition.log.durability.mark_due]
        if due:
            await self._context.worker.run(lambda: write_marks(due))

    async def close(self, error: CometError) -> None:
        self._closing = True
        async with self._changing:  # a log that is being opened has to be closed too
            open_ = iter(list(self.by_handle.values()))

            async def some() -> None:
                for partition in open_:
                    try:
                        await partition.close(error)
                    except Exception as caught:  # noqa: BLE001 - the others are still to be closed
                        self._context.tasks.report(f"closing {partition}", caught)

            async with asyncio.TaskGroup() as closing:
                for _ in range(limits.BLOCKING_THREADS):  # disks do many syncs in the time of one
                    closing.create_task(some())


def _pop(table: dict[str, None]) -> str:
    key = next(iter(table))
    del table[key]
    return key


def storage_error(error: OSError) -> CometError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            "the broker's disk is full; free some space, and writes resume by themselves", retry_after_ms=1000
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return LimitExceeded("the broker has no file descriptors left; raise its limit", retry_after_ms=1000)
    return LogFailed(f"the broker's disk failed: {error.strerror or error}")
