"""The keys of the partitions of one broker: reads, and conditions on publishes.

    read_keys  ─► leads, lease holds, high watermark known? ─► the view keeps up ─► answered in the same turn
                                                                  └─► a worker takes in the log ─► again
    publish    ─► condition(records) ─► Partition.produce calls it between its other checks and the append

An answer without `stale` is linearizable: the leader gives it while its lease holds, so that no other broker can have
acknowledged a later record, from all records below the high watermark, to which every record that it acknowledged with
acks=all belongs. On an `available` topic, which has no leases, it is not.

Owned by the broker; on its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from comet.errors import InvalidArgument, LimitExceeded, RevisionMismatch, Unavailable
from comet.records.expiry import has_expired
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL
from comet.wire.corrupt import headers, opened
from comet_broker import limits
from comet_broker.env import Env
from comet_broker.key_values.view import KeyView
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.offset_lookup import check_settled
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.record_messages import counts, record_messages

ABSENT: Final = -1  # as a revision: no record, a tombstone, or one that has expired
_ANSWER_BYTES: Final = limits.READ_KEYS_BYTES_MAX
_LOOKUP_BYTES: Final = 4 * limits.KIB  # for a record by its offset; a larger batch is read whole
_FROM_LOG: Final = ("history", "revision")  # kinds of requests whose records are read from the log


class NotReadYet(Exception):
    """Records of the log have to be taken in first: wait for `KeyViews.take_in`, and try again."""


class Refused(Exception):
    """A condition does not hold: pass it to `KeyViews.confirmed`, which waits until that is final."""

    def __init__(self, error: RevisionMismatch, offset: int) -> None:
        super().__init__(error)
        self.error = error
        self.offset = offset  # of the key's last record; -1: it has none


class KeyViews:
    def __init__(self, env: Env, reader: LogReader) -> None:
        self._env = env
        self._reader = reader
        self._views: dict[int, KeyView] = {}  # by the partition's handle
        # A broker with less memory than usual keeps fewer.
        self._room = max(env.in_flight.bytes_max // limits.KEY_TABLE_CACHE_BYTES, 1)

    def __len__(self) -> int:
        return len(self._views)

    # ---- conditions

    def condition(self, partition: Partition, chosen: Sequence[pb.Record]) -> Callable[[], None] | None:
        """A check for Partition.produce: raises Refused if a key has another revision than expected, or NotReadYet.
        None: nothing is expected."""
        expected = {record.key: record.expected for record in chosen if record.HasField("expected")}
        if not expected:
            return None

        def check() -> None:
            view = self._view(partition)
            if not view.keep_up():
                raise NotReadYet
            for key, revision in expected.items():
                found = view.newest(key)
                actual = found.revision if found is not None and found.counts(self._env.clock.wall_us()) else ABSENT
                if actual != revision:
                    offset = ABSENT if found is None else found.revision
                    raise Refused(_mismatch(partition, key, revision, actual), offset)

        return check

    def appended(self, partition: Partition, base_offset: int, chosen: Sequence[pb.Record], now_us: int) -> None:
        """Tells the view of a batch, in the turn in which it was appended after its check."""
        view = self._views.get(partition.handle)
        if view is not None:
            view.appended(base_offset, chosen, now_us)

    @staticmethod
    async def confirmed(partition: Partition, refused: Refused) -> RevisionMismatch:
        """The error, once no failover can take back the record that it is about. Raises if this broker stops leading:
        the record may be lost, and the condition hold."""
        if refused.offset >= partition.high_watermark:
            await partition.acked(refused.offset + 1, ACKS_ALL)
        return refused.error

    async def take_in(self, partition: Partition) -> None:
        """Returns once the records that the log has now are taken in."""
        view = self._view(partition)
        try:
            async with asyncio.timeout(limits.KEY_WAIT_S_MAX):
                await view.take_in()
        except TimeoutError:
            raise Unavailable(
                f"the keys of {partition} are still being read: {view.read_end} of {partition.log.log_end} offsets; "
                "try again in a moment",
                retry_after_ms=500,
            ) from None

    # ---- reads

    def read_now(self, partition: Partition, request: pb.ReadKeysRequest) -> pb.ReadKeysResponse | None:
        """The answer, if it needs no await."""
        _check_readable(partition, stale=request.stale)
        if request.WhichOneof("what") in _FROM_LOG:
            return None
        view = self._view(partition)
        if not view.keep_up() and view.behind():
            return None
        return _answer(partition, view, request, self._env.clock.wall_us())

    async def read(self, partition: Partition, request: pb.ReadKeysRequest) -> pb.ReadKeysResponse:
        """The answer, within the time that a call may wait."""
        kind = request.WhichOneof("what")
        if kind not in _FROM_LOG:
            return await self._read(partition, request)
        key = request.history.key if kind == "history" else request.revision.key
        await self._read(partition, pb.ReadKeysRequest(stale=request.stale, keys=pb.KeyList(keys=[key])))
        revisions = self._view(partition).revisions(key, limits.KEY_HISTORY_MAX)
        if kind == "history":
            revisions = revisions[: request.history.limit or limits.KEY_HISTORY_MAX]
        else:
            wanted = request.revision.revision
            revisions = [wanted] if wanted in revisions or wanted < partition.last_stable_offset else []
        async with self._env.in_flight.reserved(_ANSWER_BYTES):
            return _about(partition, await self._history(partition, key, revisions))

    async def _read(self, partition: Partition, request: pb.ReadKeysRequest) -> pb.ReadKeysResponse:
        give_up = self._env.clock.monotonic() + limits.KEY_WAIT_S_MAX
        while True:
            async with self._env.in_flight.reserved(_ANSWER_BYTES):
                answer = self.read_now(partition, request)
                if answer is not None:
                    return answer
            if self._env.clock.monotonic() > give_up:
                raise Unavailable(f"the keys of {partition} are written faster than they are read", retry_after_ms=500)
            await self.take_in(partition)

    # ---- histories

    async def _history(self, partition: Partition, key: bytes, revisions: Sequence[int]) -> list[bytes]:
        """The records at these offsets, up to the bound of an answer, as far as they are there and have not expired."""
        found: list[bytes] = []
        size = 0
        for offset in revisions:
            if offset < partition.log.log_start or size >= _ANSWER_BYTES:
                break
            record = await self._at(partition, offset)
            if record is None or has_expired(record.expires_us, self._env.clock.wall_us()):
                continue
            if record.HasField("key") and record.key == key:
                found.append(record.SerializeToString())
                size += len(found[-1])
        return found

    async def _at(self, partition: Partition, offset: int) -> pb.Record | None:
        data, next_offset = await self._reader.read_from(partition, offset, None, _LOOKUP_BYTES)
        aborted = partition.watermarks.isolation.aborted(offset, next_offset)
        for start, header in headers(data):
            if header.base_offset <= offset < header.next_offset and counts(header, aborted):
                batch = opened(header, data, start, partition.topic, partition.index)
                found = next(record_messages(batch, offset), None)
                return found if found is not None and found.offset == offset else None
        return None

    # ---- views

    def _view(self, partition: Partition) -> KeyView:
        if partition.closed is not None:
            raise partition.closed
        now = self._env.clock.monotonic()
        view = self._views.get(partition.handle)
        if view is None or view.closed is not None:
            self._make_room(now)
            view = self._views[partition.handle] = KeyView(partition, self._reader, now)
        view.used_at = now
        return view

    def _make_room(self, now: float) -> None:
        for handle in [handle for handle, view in self._views.items() if view.closed is not None]:
            del self._views[handle]
        views_max = min(limits.KEY_VIEWS_MAX, self._room)
        if len(self._views) < views_max:
            return
        handle, oldest = min(self._views.items(), key=lambda item: item[1].used_at)
        if now - oldest.used_at < limits.KEY_VIEW_IDLE_S_MIN:
            raise LimitExceeded(
                f"the keys of {views_max} partitions are in use on this broker, its limit",
                retry_after_ms=1000,
            )
        del self._views[handle]
        oldest.close(Unavailable(f"the keys of {oldest.partition} made room for others", retry_after_ms=20))


def check(request: pb.ReadKeysRequest) -> None:
    """Raises InvalidArgument if the request is not within its limits."""
    match request.WhichOneof("what"):
        case "keys":
            if not 1 <= len(request.keys.keys) <= limits.READ_KEYS_MAX:
                raise InvalidArgument(f"read_keys takes 1 to {limits.READ_KEYS_MAX} keys, not {len(request.keys.keys)}")
        case "range":
            if request.range.limit > limits.READ_KEYS_MAX:
                raise InvalidArgument(f"the limit of a range is at most {limits.READ_KEYS_MAX}")
        case "revision":
            if request.revision.revision < 0:
                raise InvalidArgument("a revision is an offset, and not negative")
        case "history":
            pass
        case _:
            raise InvalidArgument("read_keys takes keys, a range, the history of a key or one revision of it")


def check_expected(chosen: Sequence[pb.Record], partitions: Sequence[int], acks: int) -> None:
    """Raises InvalidArgument if the conditions of a publish cannot be checked."""
    conditional = [record for record in chosen if record.HasField("expected")]
    if not conditional:
        return
    if len(set(partitions)) > 1:
        raise InvalidArgument(
            "records with `expected` go to one partition in one request: give it, or send them singly"
        )
    if not all(record.HasField("key") for record in conditional):
        raise InvalidArgument("a record with `expected` needs a key")
    if len({record.key for record in chosen if record.HasField("key")}) < sum(
        record.HasField("key") for record in chosen
    ):
        raise InvalidArgument("the records of a request with `expected` have different keys")
    if any(record.expected < ABSENT for record in conditional):
        raise InvalidArgument("`expected` is an offset, or -1 for a key without a value")
    if acks != ACKS_ALL:
        raise InvalidArgument("a record with `expected` needs acks=all: else its revision could be lost")


def _check_readable(partition: Partition, *, stale: bool) -> None:
    if partition.closed is not None:
        raise partition.closed
    if stale:
        return
    if not partition.leads:
        raise partition.not_leader()
    if not partition.sure:
        raise Unavailable("this broker's lease has expired: it cannot reach the metadata store", retry_after_ms=100)
    check_settled(partition)


def _mismatch(partition: Partition, key: bytes, expected: int, actual: int) -> RevisionMismatch:
    def described(revision: int) -> str:
        return "no value" if revision == ABSENT else f"revision {revision}"

    return RevisionMismatch(
        f"the key {key[:100]!r} of {partition} has {described(actual)}, not {described(expected)}; "
        "nothing was written: read it again",
        details={"revision": str(actual)},
    )


def _answer(partition: Partition, view: KeyView, request: pb.ReadKeysRequest, now_us: int) -> pb.ReadKeysResponse:
    if request.WhichOneof("what") == "keys":
        return _about(partition, view.last(request.keys.keys, now_us))
    wanted = request.range
    start = wanted.after if wanted.HasField("after") else None
    found, after = view.range(wanted.prefix, start, wanted.limit or 100, now_us)
    answer = _about(partition, found)
    if after is not None:
        answer.after = after
    return answer


def _about(partition: Partition, found: Sequence[bytes]) -> pb.ReadKeysResponse:
    partition.counts.delivered(len(found), sum(map(len, found)))
    answer = pb.ReadKeysResponse(
        last_stable_offset=partition.last_stable_offset, high_watermark=partition.high_watermark
    )
    for record in found:
        answer.records.add().MergeFromString(record)
    return answer
