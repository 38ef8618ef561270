"""Acquires and acknowledges by unary calls to the partitions' current leaders.

    take      each leader in turn, without waiting, until there are enough            Lock
    await     all leaders at once, without acquiring                      Lock, peek
    acknowledge    each leader its own records, retried until it has answered    Acknowledge

No acquired record is lost in transit: a call that acquires is never cancelled. If its caller was cancelled meanwhile,
the records are handed back, undelivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from comet import limits, records
from comet.client.client import Client
from comet.client.metadata import mark_retrieved, share
from comet.client.retry import Backoff
from comet.entities import TopicInfo
from comet.errors import (
    CometError,
    CorruptRecords,
    LimitExceeded,
    LockExpired,
    NotLeader,
    Timeout,
    TopicNotFound,
    Unavailable,
)
from comet.share.tokens import Token
from comet.v1 import groups_pb2 as pb
from comet.values.record import HeaderList
from comet.wire.corrupt import headers, opened, range_of
from comet.wire.protobuf import error_from_pb

log = logging.getLogger("comet")

M = TypeVar("M", bound=Message)

ACQUIRE: Final = "comet.v1.Comet/Acquire"
ACKNOWLEDGE: Final = "comet.v1.Comet/Acknowledge"
PATIENCE_S: Final = 1.0  # for slow brokers, beyond the wait of a call
ACKNOWLEDGED_TOGETHER_MAX: Final = 5_000  # records in one call


class AcquiredEntry(NamedTuple):
    """An acquired record, not decoded."""

    token: Token
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    headers: HeaderList
    delivery_count: int


class Leader(NamedTuple):
    """A broker and the partitions of a topic that it leads."""

    address: str
    partitions: tuple[int, ...]


class AckRequest(NamedTuple):
    """An acknowledgement of records: accept, release, reject, extend or return."""

    kind: pb.AcknowledgeType
    delay_ms: int = 0
    reason: str = ""


class AcquireCalls:
    """Owned by a ShareClient."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turn = client.random.getrandbits(16)  # decides which broker gets the first request
        self._followed: set[str] = set()  # topics that are watched for new partitions

    # ---- leaders

    async def _leaders(self, topic: str) -> list[Leader]:
        """The leaders, in another order each time, so that none starves. Raises Unavailable if there is none."""
        try:
            info = await self._client.topic(topic)
        except TopicNotFound:
            self._followed.discard(topic)
            raise
        if topic not in self._followed:
            self._followed.add(topic)
            self._client.watch(self._names, self._topic_changed)
        found: dict[str, list[int]] = {}
        for partition in info.partitions:
            broker = self._client.broker(partition.leader)
            if broker is not None:
                found.setdefault(f"{broker.host}:{broker.port}", []).append(partition.partition)
        if sum(map(len, found.values())) < len(info.partitions):
            self._client.forget(topic)  # some partitions have no leader now
        if not found:
            raise Unavailable(f"no partition of {topic!r} has a leader now")
        leaders = [Leader(address, tuple(indexes)) for address, indexes in found.items()]
        self._turn += 1
        at = self._turn % len(leaders)
        return leaders[at:] + leaders[:at]

    def _names(self) -> list[str]:
        return list(self._followed)

    def _topic_changed(self, topic: TopicInfo) -> None:
        """Does nothing: watching keeps the topic in the directory, with its new partitions."""

    async def _call(self, address: str, method: str, request: Message, response: type[M], timeout_ms: int) -> M:
        """A unary call beside a monitored connection, so that a silent broker is detected."""
        await self._client.connection(address)
        return await self._client.unary_at(address, method, request, response, timeout_ms)

    # ---- acquiring

    async def acquire(self, request: pb.AcquireRequest, wait_s: float) -> list[AcquiredEntry]:
        loop = asyncio.get_running_loop()
        wait_until = loop.time() + wait_s
        give_up = wait_until + limits.REQUEST_TIMEOUT_MS / 1000
        backoff = Backoff(self._client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
        while True:
            try:
                leaders = await self._leaders(request.topic)
                found, problem = await self._take(request, leaders, wait_until + PATIENCE_S)
            except CometError as error:
                if not _passes(error):
                    raise
                leaders, found, problem = [], [], error
            now = loop.time()
            if found or (now >= wait_until and (problem is None or leaders)):
                return found
            if problem is None:
                problem = await self._await(request, leaders, wait_until)
            elif now >= give_up:
                raise problem
            if problem is None:
                backoff.reset()
            else:
                await asyncio.sleep(min(backoff.next_s(problem.retry_after_ms), max(give_up - now, 0)))

    async def _take(
        self, request: pb.AcquireRequest, leaders: list[Leader], until: float
    ) -> tuple[list[AcquiredEntry], CometError | None]:
        """Acquires from the leaders now; returns the records and the errors. Failed leaders are taken off the list.
        Those not asked before `until` are the first the next time."""
        tokens: list[Token] = []
        found: list[AcquiredEntry] = []
        problem: CometError | None = None
        records_left, bytes_left = request.records_max, request.bytes_max
        try:
            for number, leader in enumerate(list(leaders)):
                if number and asyncio.get_running_loop().time() >= until:
                    break
                try:
                    answer = await self._take_from(leader, request, records_left, bytes_left)
                except CometError as error:
                    self._client.forget(request.topic)
                    if not tokens and not _passes(error):
                        raise
                    problem = error
                    leaders.remove(leader)
                    continue
                tokens += [token for one in answer.ranges for token in _tokens(request.group, request.topic, one)]
                for one in answer.ranges:
                    found += self._readable(request.group, request.topic, one)
                    bytes_left -= len(one.batches)
                records_left = request.records_max - len(tokens)
                if answer.missing:
                    problem = NotLeader(f"the broker at {leader.address} does not lead all of its partitions now")
                    self._client.forget(request.topic)
                if records_left <= 0 or bytes_left <= 0:
                    break
        except BaseException:
            self.hand_back(tokens)
            raise
        return found, problem

    async def _take_from(
        self, leader: Leader, request: pb.AcquireRequest, records_max: int, bytes_max: int
    ) -> pb.AcquireResponse:
        """Acquires at a leader. A cancelled call continues, and its records are handed back."""
        leader_request = _about(request, leader, records_max=records_max, bytes_max=bytes_max)
        call: asyncio.Task[pb.AcquireResponse] = self._client.spawn(
            self._call(leader.address, ACQUIRE, leader_request, pb.AcquireResponse, limits.REQUEST_TIMEOUT_MS)
        )
        try:
            return await share(call)
        except asyncio.CancelledError:
            call.add_done_callback(lambda done: self._unwanted(request, done))
            raise

    def _unwanted(self, request: pb.AcquireRequest, call: asyncio.Task[pb.AcquireResponse]) -> None:
        if call.cancelled() or call.exception() is not None:
            return  # no records, or the partition's leader is unknown: then the locks expire
        self.hand_back([token for one in call.result().ranges for token in _tokens(request.group, request.topic, one)])

    async def _await(self, request: pb.AcquireRequest, leaders: Sequence[Leader], until: float) -> CometError | None:
        """Waits until there may be records to acquire, or the time is up; returns the error if it cannot wait."""
        left_ms = max(int((until - asyncio.get_running_loop().time()) * 1000), 1)
        calls: set[asyncio.Task[pb.AcquireResponse]] = {
            self._client.spawn(
                self._call(
                    leader.address,
                    ACQUIRE,
                    _about(request, leader, peek=True, wait_ms=left_ms),
                    pb.AcquireResponse,
                    left_ms + limits.REQUEST_TIMEOUT_MS,
                )
            )
            for leader in leaders
        }
        try:
            done, _ = await asyncio.wait(calls, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for call in done if not call.cancelled() and (error := call.exception()) is not None]
        finally:
            for call in calls:
                call.add_done_callback(mark_retrieved)
                call.cancel()
        for error in errors:
            if not isinstance(error, CometError) or not _passes(error):
                raise error
            self._client.forget(request.topic)
            return error
        return None

    def hand_back(self, tokens: Sequence[Token]) -> None:
        """Hands back, in the background, records that the caller no longer wants."""
        if tokens and not self._client.closed:
            back = self._client.spawn(self.acknowledge(tokens, AckRequest(pb.ACKNOWLEDGE_TYPE_RETURN)))
            back.add_done_callback(mark_retrieved)

    def _readable(self, group: str, topic: str, acquired: pb.AcquiredRange) -> list[AcquiredEntry]:
        """The acquired records. Those of a corrupt batch are rejected in the background."""
        found: list[AcquiredEntry] = []
        for one in _taken(group, topic, acquired):
            if isinstance(one, AcquiredEntry):
                found.append(one)
                continue
            log.error("comet: group %s: rejected records: %s", group, one)
            first, end = range_of(one)
            lost = [token for token in _tokens(group, topic, acquired) if first <= token.offset < end]
            if not self._client.closed:
                rejecting = self._client.spawn(
                    self.acknowledge(lost, AckRequest(pb.ACKNOWLEDGE_TYPE_REJECT, reason=one.message))
                )
                rejecting.add_done_callback(mark_retrieved)
        return found

    # ---- acknowledging

    async def acknowledge(self, tokens: Sequence[Token], ack: AckRequest) -> list[CometError | None]:
        """Returns one answer per token. Permanent errors are final; others are retried for a while."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + limits.REQUEST_TIMEOUT_MS / 1000
        backoff = Backoff(self._client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
        answers: dict[Token, CometError | None] = {}
        unsure: set[Token] = set()  # sent without an answer
        pending = list(dict.fromkeys(tokens))
        while pending:
            outcomes = await self._acknowledge_once(pending, ack, max(int((give_up - loop.time()) * 1000), 1))
            wait_s = backoff.next_s(max((_advice(error) for error in outcomes.values()), default=0))
            late = loop.time() + wait_s >= give_up
            again: list[Token] = []
            for token, error in outcomes.items():
                if error is not None and _may_be_stored(error):
                    unsure.add(token)
                if error is not None and (error.retriable or isinstance(error, Timeout)) and not late:
                    again.append(token)
                else:
                    answers[token] = _result(token, error, unsure=token in unsure)
            pending = again
            if pending:
                for topic in {token.topic for token in pending}:
                    self._client.forget(topic)
                await asyncio.sleep(wait_s)
        return [answers[token] for token in tokens]

    async def _acknowledge_once(
        self, tokens: Sequence[Token], ack: AckRequest, timeout_ms: int
    ) -> dict[Token, CometError | None]:
        """Acknowledges all tokens once, at their leaders."""
        outcomes: dict[Token, CometError | None] = {}
        calls: dict[tuple[str, str, str], list[Token]] = {}
        for topic in dict.fromkeys(token.topic for token in tokens):
            chosen = [token for token in tokens if token.topic == topic]
            try:
                leaders = await self._leaders(topic)
            except CometError as error:
                outcomes.update(dict.fromkeys(chosen, error))
                continue
            addresses = {index: leader.address for leader in leaders for index in leader.partitions}
            for token in chosen:
                address = addresses.get(token.partition)
                if address is None:
                    outcomes[token] = Unavailable(f"partition {token.partition} of {topic!r} has no leader now")
                else:
                    calls.setdefault((address, token.group, topic), []).append(token)
        answered = await asyncio.gather(
            *(
                self._acknowledge_at(address, chosen[at : at + ACKNOWLEDGED_TOGETHER_MAX], ack, timeout_ms)
                for (address, _, _), chosen in calls.items()
                for at in range(0, len(chosen), ACKNOWLEDGED_TOGETHER_MAX)
            )
        )
        for one in answered:
            outcomes.update(one)
        return outcomes

    async def _acknowledge_at(
        self, address: str, tokens: Sequence[Token], ack: AckRequest, timeout_ms: int
    ) -> dict[Token, CometError | None]:
        """Acknowledges tokens of one group and topic, at one broker."""
        by_lock: dict[tuple[int, bytes, int], list[Token]] = {}
        for token in sorted(tokens, key=_offset):
            by_lock.setdefault((token.partition, token.topic_id, token.lock), []).append(token)
        request = pb.AcknowledgeRequest(group=tokens[0].group, topic=tokens[0].topic, forwarded=True)
        for (partition, topic_id, lock), chosen in by_lock.items():
            request.acknowledgements.add(
                partition=partition, topic_id=topic_id, lock_id=lock, kind=ack.kind,
                firsts=[token.offset for token in chosen], ends=[token.offset + 1 for token in chosen],
                delay_ms=ack.delay_ms, reason=ack.reason,
            )  # fmt: skip
        try:
            answer = await self._call(address, ACKNOWLEDGE, request, pb.AcknowledgeResponse, timeout_ms)
        except CometError as error:
            return dict.fromkeys(tokens, error)
        if len(answer.acknowledged) != len(by_lock):
            return dict.fromkeys(tokens, Unavailable(f"unexpected answer from {address}"))
        outcomes: dict[Token, CometError | None] = {}
        for chosen, acknowledged in zip(by_lock.values(), answer.acknowledged, strict=True):
            if acknowledged.HasField("error"):
                outcomes.update(dict.fromkeys(chosen, error_from_pb(acknowledged.error)))
                continue
            lost = {
                offset
                for first, end in zip(acknowledged.lost_firsts, acknowledged.lost_ends, strict=True)
                for offset in range(first, end)
            }
            outcomes.update((token, LockExpired("") if token.offset in lost else None) for token in chosen)
        return outcomes


def _offset(token: Token) -> int:
    return token.offset


def _about(request: pb.AcquireRequest, leader: Leader, **more: Any) -> pb.AcquireRequest:
    """Marks the request for that leader: a broker that does not lead refuses it instead of forwarding it."""
    leader_request = pb.AcquireRequest(forwarded=True, partitions=leader.partitions)
    leader_request.MergeFrom(request)
    for name, value in more.items():
        setattr(leader_request, name, value)
    return leader_request


def _advice(error: CometError | None) -> int:
    return 0 if error is None else error.retry_after_ms


def _passes(error: CometError) -> bool:
    """Whether a retry may help. A reached limit is reported to the caller."""
    return (error.retriable or isinstance(error, Timeout)) and not isinstance(error, LimitExceeded)


def _may_be_stored(error: CometError) -> bool:
    """Whether the acknowledgement may have taken effect all the same."""
    return error.outcome_unknown or isinstance(error, Unavailable)


def _result(token: Token, error: CometError | None, *, unsure: bool) -> CometError | None:
    if isinstance(error, LockExpired):
        problem = f"record {token.offset} of {token.topic}/{token.partition} is no longer acquired under this token"
        if unsure:
            why = "an earlier acknowledgement without an answer may have been kept"
            return LockExpired(f"{problem}; {why}", details={"outcome": "unknown"})
        return LockExpired(problem)
    if error is not None and unsure and error.retriable:
        return Timeout(f"no answer in time; the acknowledgement may or may not be kept: {error.message}")
    return error


def _tokens(group: str, topic: str, acquired: pb.AcquiredRange) -> Iterator[Token]:
    for one in acquired.records:
        for offset in range(one.first, one.end):
            yield Token(group, topic, acquired.topic_id, acquired.partition, acquired.lock_id, offset)


def _taken(group: str, topic: str, acquired: pb.AcquiredRange) -> Iterator[AcquiredEntry | CorruptRecords]:
    """The acquired records of the batches; for a corrupt batch its error."""
    counts = {offset: one.delivery_count for one in acquired.records for offset in range(one.first, one.end)}
    data = memoryview(acquired.batches)
    for at, header in headers(data):
        try:
            batch = opened(header, data, at, topic, acquired.partition)
        except CorruptRecords as error:
            yield error
            continue
        header_columns: Callable[[int], HeaderList] = _headers_of(batch)
        values, keys, timestamps = batch.values, batch.keys, batch.timestamps
        for index, offset in enumerate(batch.offsets):
            delivery_count = counts.pop(offset, 0)
            if delivery_count:
                yield AcquiredEntry(
                    Token(group, topic, acquired.topic_id, acquired.partition, acquired.lock_id, offset),
                    keys[index], values[index], timestamps[index], header_columns(index), delivery_count,
                )  # fmt: skip


def _headers_of(batch: records.Batch) -> Callable[[int], HeaderList]:
    if batch.header_columns is None:
        return lambda _: []
    headers = batch.headers
    return lambda index: headers[index]
