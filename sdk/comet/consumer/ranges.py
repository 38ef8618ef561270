"""The range reader: a bounded read of one partition, forward or backward, as batches and gaps in order.

    RangeState.request() ─► Reader.fetch ─► RangeState.take(fetched), or .fail(error) ─► batches and gaps

RangeState decides, and is pure; RangeReader makes the requests. The end is fixed when the read begins: all records of
the range are known to exist then, so those that do not come later are a gap.

    forward     from the start on; an offset that retention has reached meanwhile is the end of a gap
    backward    in windows that end where the last one began; within a batch, records keep their order

A record of a later leader epoch than the last one of the range was written after the log was truncated: it is another
record, and what it replaced is a gap. With the topic's id, a topic that was recreated is refused by the brokers.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from comet.consumer.options import Isolation
from comet.errors import CometError, DataLoss, OffsetOutOfRange, Truncated
from comet.limits import UINT32_MAX
from comet.types import AtOffset, Gap, Latest, Position, StartLike
from comet.values.record import RecordBatch

if TYPE_CHECKING:
    from comet.filters import Filter

STEP_RECORDS: Final = 1 << 17
STEP_BYTES: Final = 4 << 20  # a broker returns no more at once
KNOWN_WAIT_MS: Final = 500  # at one broker, for records that are known to exist: another may lead by then

Part = RecordBatch[bytes] | Gap


class Fetched(NamedTuple):
    """A part of a partition: whole batches and parts of batches, with only the requested records.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.Reader(address) as reader:
    ...         first = await reader.fetch("quotes", 0, "earliest", records_max=2)
    ...         rest = await reader.fetch("quotes", 0, first.next_offset, epoch=first.epoch)
    ...     print([batch.values for batch in first.batches], [batch.values for batch in rest.batches], rest.log_end)
    >>> run(example)
    [[b'1', b'2']] [[b'3']] 3
    """

    batches: list[RecordBatch[bytes]]
    first_offset: int  # the offset of the requested start
    next_offset: int  # the offset at which to continue
    epoch: int | None  # of the record before next_offset, for the next fetch
    log_start: int
    log_end: int  # the end of the readable records
    clean_end: int = 0  # of a compacted partition: superseded records below it are gone, or go at any moment
    epochs: Sequence[tuple[int, int]] = ()  # the first offset and the epoch of each run of batches, also of empty ones
    times: tuple[int, int] | None = None  # with a filter: the bounds of the timestamps of what the broker looked at


class Fetches(Protocol):
    """Reads a part of a partition by request; `comet.Reader` does."""

    async def fetch(
        self, topic: str, partition: int, start: StartLike, *, epoch: int | None, records_max: int, bytes_max: int,
        wait_ms: int, isolation: Isolation, topic_id: bytes, expired: bool = ..., filter_hint: str = ...,
    ) -> Fetched: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class RangeSpec:
    """A range of a partition, and how it is read. Offsets are known to exist, unless retention deletes them.

    `start`     an offset, or a position that the first request resolves; backward: an offset, or None for the log start
    `end`       exclusive; None: the end of the readable records, as the first answer has it, at most `end_max`
    `filter_hint`  a filter that the caller applies to the parts: brokers may leave out what does not match. The maxima
                of records then count offsets
    """

    topic: str
    partition: int
    start: int | Position | None
    end: int | None
    backward: bool = False
    topic_id: bytes = b""
    epoch: int | None = None  # of the record before `start`, if known
    end_epoch: int | None = None  # of the record before `end`, or a later one, if known
    end_max: int | None = None
    isolation: Isolation = "committed"
    expired: bool = False  # with the records that have expired
    filter_hint: str = ""
    hint_first: bool = True  # False: the first answer has all records, so that the caller can tell why none matches
    step_records_first: int = STEP_RECORDS  # of the first request; each next one asks for twice as many
    step_records: int = STEP_RECORDS
    step_bytes: int = STEP_BYTES
    records_max: int | None = None
    bytes_max: int | None = None
    first_wait_ms: int = 0  # for the first record, if `end` is None
    wait_ms: int | None = 0  # for records that are known to exist, before they count as truncated; None: without end

    @property
    def size(self) -> int:
        """Offsets of the range, if both ends are known; else 0."""
        return max(self.end - self.start, 0) if isinstance(self.start, int) and self.end is not None else 0


class RangeRequest(NamedTuple):
    """The next request of a range."""

    start: Position
    records_max: int
    epoch: int | None = None
    filter_hint: str = ""


@dataclass(slots=True)
class Filtering:
    """What brokers are told of a filter, and tell of it."""

    hint: str  # of the next request
    left_out: int = 0  # offsets that came without a record
    times: tuple[int, int] | None = None  # of the last answer that moved the read on


class RangeState:
    """What is left of a range: [low, high). Pure: takes answers and errors, and returns batches and gaps in order."""

    def __init__(self, spec: RangeSpec) -> None:
        self.spec = spec
        self.low = spec.start if isinstance(spec.start, int) else None
        self.high = spec.end
        self.epoch = spec.epoch  # of the record before `low`, if known
        self.log_start = 0
        self.log_end = 0
        self.clean_end = 0
        self.records = 0  # read so far
        self.bytes = 0
        self.filtering = Filtering(spec.filter_hint if spec.hint_first else "")
        self._epoch_max = spec.end_epoch
        self._step = min(spec.step_records_first, spec.step_records)
        self._damage: Gap | None = None  # backward: known, not reached yet
        self._waiting: Gap | None = None  # backward: damaged offsets, which may go on
        self._deleted: Gap | None = None  # backward: comes last

    @property
    def done(self) -> bool:
        """Whether the whole range was read."""
        return self.low is not None and self.high is not None and self.low >= self.high

    @property
    def exhausted(self) -> bool:
        """Whether the budget of records or bytes is used up."""
        spec = self.spec
        return (spec.records_max is not None and self.records >= spec.records_max) or (
            spec.bytes_max is not None and self.bytes >= spec.bytes_max
        )

    @property
    def position(self) -> int | None:
        """The offset at which the read continues; backward: the exclusive end of what is left."""
        if self._waiting is not None:  # a gap that is not reported yet: the next read finds it again
            return self._waiting.end
        return self.high if self.spec.backward else self.low

    def request(self) -> RangeRequest | None:
        """The next request; None if the range was read, or its budget is used up."""
        if self.done or self.exhausted:
            return None
        spec, most = self.spec, min(self._step, UINT32_MAX)
        if spec.records_max is not None:
            most = min(most, spec.records_max - self.records)
        if not spec.backward:
            if self.low is None:
                assert spec.start is not None and not isinstance(spec.start, int)
                return RangeRequest(spec.start, most, None, self.filtering.hint)
            left = most if self.high is None else min(most, self.high - self.low)
            return RangeRequest(AtOffset(self.low), left, self.epoch, self.filtering.hint)
        if self.high is None:
            return RangeRequest(Latest(), 1)
        start = max(self.high - most, self.low or 0)
        return RangeRequest(AtOffset(start), self.high - start, None, self.filtering.hint)

    def short(self, request: RangeRequest, fetched: Fetched) -> bool:
        """Whether the answer lacks records that are known to exist: a new leader may not know of them yet."""
        if self.high is None or not isinstance(request.start, AtOffset):
            return False
        if self.spec.backward:
            return fetched.next_offset < self.high and (
                fetched.next_offset >= fetched.log_end or fetched.next_offset <= request.start.offset
            )
        return fetched.next_offset <= request.start.offset

    def take(self, request: RangeRequest, fetched: Fetched) -> list[Part]:
        """The parts that an answer brings."""
        self.log_start, self.log_end = fetched.log_start, fetched.log_end
        self.clean_end = max(self.clean_end, fetched.clean_end)
        self.filtering.times = None
        if not self.spec.backward:
            before = fetched.first_offset if self.low is None else self.low
            parts = self._take_forward(request, fetched)
            passed = (self.low or 0) - before
        else:
            if self.low is None:
                self.low = fetched.log_start
            before = self.high or 0
            parts = self._take_backward(request, fetched)
            passed = before - (self.high or 0)
        if self.spec.filter_hint and passed > 0:
            self._count_left_out(passed, parts)
            self.filtering.times = fetched.times
            self.filtering.hint = self.spec.filter_hint
        return parts

    def _count_left_out(self, passed: int, parts: list[Part]) -> None:
        """Counts offsets without a record as read: only the broker knows which of them had one."""
        left_out = passed - sum(len(part) for part in parts if not isinstance(part, Gap))
        self.filtering.left_out += left_out
        self.records += left_out

    def fail(self, request: RangeRequest, error: CometError) -> list[Part]:
        """The gap that an error reports. Raises the error if it reports none."""
        at = request.start.offset if isinstance(request.start, AtOffset) else -1
        gap = Gap.of(error, self.spec.topic, self.spec.partition, at)
        if gap is None or (self.spec.backward and at < 0):
            raise error
        return self._lost_backward(gap, at) if self.spec.backward else self._lost_forward(gap)

    # ---- forward

    def _take_forward(self, request: RangeRequest, fetched: Fetched) -> list[Part]:
        if self.low is None:
            self.low = fetched.first_offset
        if self.high is None:
            known = fetched.log_end if self.spec.end_max is None else min(fetched.log_end, self.spec.end_max)
            self.high = max(known, self.low)
        elif self.short(request, fetched):
            return [self._gone(self.low, self._short(fetched))]
        parts: list[Part] = []
        replaced = self._replaced_from(fetched)
        for batch in fetched.batches:
            part = batch if batch.next_offset <= self.high else batch.before(self.high)
            if part is None or part.first_offset >= replaced:
                break
            self._count(part)
            parts.append(part)
        if replaced < self.high:
            return [*parts, self._gone(replaced, self._replaced(replaced))]
        if fetched.next_offset <= self.high:
            self.low, self.epoch = fetched.next_offset, fetched.epoch
        else:
            self.low, self.epoch = self.high, None
        self._step = min(2 * self._step, self.spec.step_records)
        return parts

    def _lost_forward(self, gap: Gap) -> list[Part]:
        self.epoch = None
        if gap.reason == "truncated":
            if self.high is not None:
                return [self._gone(gap.first, gap.error)]
            self.low = gap.first
            return [gap]
        end = gap.end if self.high is None else min(gap.end, self.high)
        self.low = end
        return [replace(gap, end=end)] if end > gap.first else []

    def _gone(self, first: int, error: CometError | None) -> Gap:
        """The rest of the range was truncated: other records have its offsets, or will."""
        assert self.low is not None and self.high is not None
        gap = Gap(self.spec.topic, self.spec.partition, min(first, self.high), self.high, "truncated", error)
        self.low, self.epoch = self.high, None
        return gap

    # ---- backward

    def _take_backward(self, request: RangeRequest, fetched: Fetched) -> list[Part]:
        if self.high is None:
            return self._begin_backward(fetched)
        assert isinstance(request.start, AtOffset)
        start = request.start.offset
        parts: list[Part] = []
        if self.short(request, fetched):
            first = max(fetched.next_offset, start)
            parts += [*self._reached(), self._named(first, self.high, self._short(fetched))]
            self.high = first
        elif fetched.next_offset < self.high:
            # Records are larger than expected: these are not the last before the end, but show how many fit.
            read = fetched.next_offset - start if self.spec.filter_hint else sum(map(len, fetched.batches))
            self._step = max(min(self._step // 2, read), 1)
            return []
        if start < self.high:  # nothing here is damaged
            parts += self._reached()
        parts += self._parts_backward(fetched)
        self.high = min(start, self.high)
        self._step = min(2 * self._step, self.spec.step_records)
        return parts + self._pass_damage()

    def _begin_backward(self, fetched: Fetched) -> list[Part]:
        end = fetched.log_end if self.spec.end_max is None else min(fetched.log_end, self.spec.end_max)
        self._epoch_max = fetched.epoch if fetched.next_offset == fetched.log_end else None
        self.high = max(end, self.low or 0)
        return []

    def _parts_backward(self, fetched: Fetched) -> list[Part]:
        assert self.high is not None
        parts: list[Part] = []
        replaced = self._replaced_from(fetched)
        if replaced < self.high:
            parts.append(self._named(replaced, self.high, self._replaced(replaced)))
            self.high = replaced
        for batch in reversed(fetched.batches):
            part = batch if batch.next_offset <= self.high else batch.before(self.high)
            if part is None:
                continue
            self._count(part)
            parts.append(part)
        runs = _runs(fetched)
        if runs and runs[0][0] < self.high:
            self._epoch_max = runs[0][1]
        return parts

    def _lost_backward(self, gap: Gap, start: int) -> list[Part]:
        assert self.high is not None
        low = self.low or 0
        if gap.reason == "truncated":
            first = max(gap.first, low)
            lost = self._named(first, self.high, gap.error)
            self.high = first
            return [*self._reached(), lost, *self._ended()]
        if gap.reason == "deleted":
            end = min(gap.end, self.high)
            if self.low is not None and end > low:
                first = low if self._deleted is None else self._deleted.first
                self._deleted = Gap(gap.topic, gap.partition, first, end, "deleted", gap.error)
            self.low = end
            return self._ended()
        if gap.first >= self.high:  # behind the window, which had no readable records
            self.high = start
            return self._pass_damage()
        self._damage = replace(gap, first=max(gap.first, low))
        if gap.end < self.high:
            self._step = self.high - gap.end  # the records behind it come first
            return []
        return self._pass_damage()

    def _pass_damage(self) -> list[Part]:
        """Moves behind damaged offsets once they are reached. Their gap is reported when its other end is known."""
        assert self.high is not None
        damage, found = self._damage, list[Part]()
        if damage is not None and damage.end >= self.high:
            self._damage = None
            if damage.first < self.high:
                waiting = self._waiting
                if waiting is not None and waiting.first > self.high:
                    found, waiting = self._reached(), None
                self._waiting = replace(damage, end=self.high if waiting is None else waiting.end)
                self.high = damage.first
                self._step = min(2 * self._step, self.spec.step_records)
        return found + self._ended()

    def _reached(self) -> list[Part]:
        """The gap behind the records that come now."""
        found: list[Part] = [] if self._waiting is None else [self._waiting]
        self._waiting = None
        return found

    def _ended(self) -> list[Part]:
        if not self.done:
            return []
        found = self._reached()
        if self._deleted is not None:
            found.append(self._deleted)
            self._deleted = None
        return found

    # ---- both

    def _count(self, part: RecordBatch[bytes]) -> None:
        self.records += len(part)
        if self.spec.bytes_max is not None:
            self.bytes += part.size

    def _named(self, first: int, end: int, error: CometError | None) -> Gap:
        return Gap(self.spec.topic, self.spec.partition, first, end, "truncated", error)

    def _short(self, fetched: Fetched) -> DataLoss:
        spec = self.spec
        return DataLoss(
            f"{spec.topic}/{spec.partition} ends at {fetched.log_end}, but ended at {self.high} when the read began",
            details={"topic": spec.topic, "partition": str(spec.partition), "log_end": str(fetched.log_end)},
        )

    def _replaced_from(self, fetched: Fetched) -> int:
        """The first offset of a later leader epoch than that of the last record of the range; none: a large one."""
        most = self._epoch_max
        return sys.maxsize if most is None else next((at for at, epoch in _runs(fetched) if epoch > most), sys.maxsize)

    def _replaced(self, first: int) -> Truncated:
        spec = self.spec
        return Truncated(
            f"{spec.topic}/{spec.partition} was truncated: the records from {first} were replaced",
            details={"topic": spec.topic, "partition": str(spec.partition), "log_end": str(first)},
        )


def _runs(fetched: Fetched) -> Sequence[tuple[int, int]]:
    """The leader epochs of an answer, each with its first offset."""
    return fetched.epochs or [(batch.first_offset, batch.epoch) for batch in fetched.batches]


class RangeReader:
    """A read of a range of one partition, made by `comet.Reader.read`: an iterator over batches and gaps.

    Ends at the end of the range, which is fixed when it begins, or once its budget is used up: `done` tells which, and
    `position`, with `epoch`, where to continue. Records that are missing come as a `Gap`, in their place.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.Reader(address) as reader:
    ...         quotes = reader.read("quotes", 0, backward=True, records_max=2)
    ...         async for part in quotes:
    ...             print("gap" if isinstance(part, comet.Gap) else [*part.values])
    ...         print(quotes.done, quotes.position)
    >>> run(example)
    [b'2', b'3']
    False 1
    """

    def __init__(
        self,
        fetches: Fetches,
        spec: RangeSpec,
        *,
        time_ms: int | None = None,
        resolve: Callable[[], Awaitable[RangeSpec]] | None = None,
        chosen: Filter | None = None,
    ) -> None:
        self._fetches = fetches
        self._chosen = chosen
        self._state = RangeState(spec)
        self._time_s = None if time_ms is None else time_ms / 1000
        self._give_up: float | None = None
        self._resolve = resolve  # the positions of the range, with the first step
        self._ready: deque[Part] = deque()  # read, and not handed out
        self._after: tuple[int, int | None] | None = None  # behind the part that was handed out last

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._state.spec.topic

    @property
    def topic_id(self) -> bytes:
        """The id of the topic that is read; empty until it is known."""
        return self._state.spec.topic_id

    @property
    def partition(self) -> int:
        """The partition that is read."""
        return self._state.spec.partition

    @property
    def backward(self) -> bool:
        """Whether the newest records come first."""
        return self._state.spec.backward

    @property
    def start(self) -> int | None:
        """The first offset of the range; None until it is known."""
        start = self._state.spec.start
        return start if isinstance(start, int) else None

    @property
    def end(self) -> int | None:
        """The offset after the range; None until it is known."""
        spec = self._state.spec
        return self._state.high if spec.end is None and not spec.backward else spec.end

    @property
    def position(self) -> int | None:
        """The offset at which reading continues; backward, the exclusive end of what is left. None until known."""
        return self._state.position if self._after is None else self._after[0]

    @property
    def epoch(self) -> int | None:
        """The leader epoch of the record before `position`, if known; with it, a later read detects truncation."""
        return self._state.epoch if self._after is None else self._after[1]

    @property
    def done(self) -> bool:
        """Whether the range was read to its end."""
        return self._state.done and not self._ready

    @property
    def left(self) -> int:
        """Offsets that are not read yet, as far as known."""
        low, high = self._state.low, self._state.high
        return 0 if low is None or high is None else max(high - low, 0)

    @property
    def log_start(self) -> int:
        """The log start offset, by the last answer."""
        return self._state.log_start

    @property
    def log_end(self) -> int:
        """The end of the readable records, by the last answer."""
        return self._state.log_end

    @property
    def clean_end(self) -> int:
        """Of a compacted partition: superseded records below it were gone by an answer, or about to go; 0: none."""
        return self._state.clean_end

    @property
    def left_out(self) -> int:
        """Offsets that came without a record; 0 without a filter."""
        return self._state.filtering.left_out

    @property
    def times(self) -> tuple[int, int] | None:
        """The bounds of the timestamps that the last step passed, if there is a filter and the broker told them."""
        return self._state.filtering.times

    async def step(self) -> list[Part]:
        """Makes the next request, and returns the parts it brings, which may be none.

        Raises errors other than gaps, as TopicNotFound if the topic was deleted or recreated.
        """
        loop = asyncio.get_running_loop()
        if self._time_s is not None and self._give_up is None:
            self._give_up = loop.time() + self._time_s
        if self._over():
            return []
        try:
            async with asyncio.timeout_at(self._give_up) as budget:
                if self._resolve is not None:
                    self._state, self._resolve = RangeState(await self._resolve()), None
                request = self._state.request()
                if request is None:
                    return []
                try:
                    fetched = await self._fetch(request)
                except CometError as error:
                    return self._state.fail(request, error)
        except TimeoutError:
            if not budget.expired():
                raise
            return []  # nothing was read
        parts = self._state.take(request, fetched)
        chosen = self._chosen
        if chosen is None:
            return parts
        matching = [part if isinstance(part, Gap) else part.pick(chosen.rows(part)) for part in parts]
        return [part for part in matching if part is not None]

    def _over(self) -> bool:
        return self._give_up is not None and asyncio.get_running_loop().time() >= self._give_up

    @property
    def stopped(self) -> bool:
        """Whether steps read no more: the range was read, or its budget is used up."""
        return self._over() or (self._resolve is None and self._state.request() is None)

    async def _fetch(self, request: RangeRequest) -> Fetched:
        """Fetches until the records that are known to exist are there, for `wait_ms` at most."""
        state, spec = self._state, self._state.spec
        loop = asyncio.get_running_loop()
        until = math.inf if spec.wait_ms is None else loop.time() + spec.wait_ms / 1000
        if self._give_up is not None:
            until = min(until, self._give_up)
        wait_ms = spec.first_wait_ms if state.high is None and not spec.backward else 0
        while True:
            found = await self._call(
                request.start, request.records_max, request.epoch, wait_ms, spec.step_bytes, request.filter_hint
            )
            left_s = until - loop.time()
            if left_s <= 0 or not state.short(request, found):
                return found
            wait_ms = math.ceil(min(left_s * 1000, KNOWN_WAIT_MS))
            if spec.backward:  # the answer has records, so that it would not wait
                with suppress(OffsetOutOfRange):  # truncated meanwhile: the next answer shows it
                    await self._call(AtOffset(found.next_offset), 1, None, wait_ms, 1)
                wait_ms = 0

    async def _call(
        self,
        start: Position,
        records_max: int,
        epoch: int | None,
        wait_ms: int,
        bytes_max: int,
        filter_hint: str = "",
    ) -> Fetched:
        spec = self._state.spec
        return await self._fetches.fetch(
            spec.topic, spec.partition, start, epoch=epoch, records_max=records_max, bytes_max=bytes_max,
            wait_ms=wait_ms, isolation=spec.isolation, topic_id=spec.topic_id, expired=spec.expired,
            filter_hint=filter_hint,
        )  # fmt: skip

    # ---- as an iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Part:
        while (part := self._take_ready()) is None:
            self._after = None
            parts = await self.step()
            self._ready.extend(parts)
            if not parts and self.stopped:
                raise StopAsyncIteration
        return part

    def _take_ready(self) -> Part | None:
        """The next part that was read, or None."""
        if not self._ready:
            return None
        part = self._ready.popleft()
        self._after = self._behind(part) if self._ready else None
        return part

    def _behind(self, part: Part) -> tuple[int, int | None]:
        if self.backward:
            return (part.first if isinstance(part, Gap) else part.first_offset), None
        return (part.end, None) if isinstance(part, Gap) else (part.next_offset, part.epoch)


async def read_ahead(reader: RangeReader) -> AsyncIterator[list[Part]]:
    """The steps of a range; each next one is requested while the caller works on the last."""
    task: asyncio.Task[list[Part]] | None = asyncio.ensure_future(reader.step())
    try:
        while task is not None:
            parts = await task
            task = None if reader.stopped else asyncio.ensure_future(reader.step())
            if parts:
                yield parts
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Bounds(NamedTuple):
    """A range of offsets, as it was at one moment. `end_epoch` is that of the record before `end` or a later one."""

    start: int
    end: int
    epoch: int | None  # of the record before `start`, if known
    end_epoch: int | None
    log_start: int
    log_end: int


async def locate(
    fetches: Fetches,
    topic: str,
    partition: int,
    start: Position,
    end: Position,
    *,
    isolation: Isolation,
    topic_id: bytes,
) -> Bounds:
    """The offsets of two positions now. The end is at most that of the readable records. Raises OffsetOutOfRange for a
    start after the log end; an offset before the log start stays: reading there tells the gap."""

    async def find(at: Position) -> Fetched:
        return await fetches.fetch(
            topic, partition, at, epoch=None, records_max=1, bytes_max=1, wait_ms=0, isolation=isolation,
            topic_id=topic_id,
        )  # fmt: skip

    async def resolved(at: Position) -> Fetched:
        try:
            return await find(at)
        except CometError as error:
            gap = Gap.of(error, topic, partition, at.offset if isinstance(at, AtOffset) else -1)
            if gap is None or gap.reason == "truncated":
                raise
            first = gap.first  # reading there tells the gap
            return (await find(Latest()))._replace(first_offset=first, next_offset=first, epoch=None)

    # Another answer does not tell the log end: the leader may have just begun.
    bound = Latest() if isinstance(end, AtOffset) else end
    if bound == start:
        first = last = await resolved(bound)
    else:
        first, last = await asyncio.gather(resolved(start), resolved(bound))
    end_offset = min(last.first_offset, last.log_end)
    if isinstance(end, AtOffset):
        end_offset = min(end.offset, end_offset)
    at = first.first_offset
    return Bounds(
        at, max(end_offset, at), first.epoch if first.next_offset == at else None,
        last.epoch, last.log_start, last.log_end,
    )  # fmt: skip
