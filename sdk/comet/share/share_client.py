"""Acquires and acknowledges records of share groups without a session, also from different programs."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self, Unpack

from comet import limits
from comet.client.bootstrap import Addresses
from comet.client.client import Client
from comet.client.world import Seams, World
from comet.errors import CometError, InvalidArgument
from comet.share.calls import AckRequest, AcquireCalls, AcquiredEntry
from comet.share.tokens import Token
from comet.types import StartLike, check_topic_name, position
from comet.v1 import groups_pb2 as pb
from comet.values.record import HeaderList, text_of_key
from comet.wire import protobuf


class AcquiredRecord(NamedTuple):
    """One record, acquired for the holder of its token. `delivery_count` counts its deliveries, from 1.

    The token is opaque text, safe in a URL. Any program with a `ShareClient`, or any gateway, can acknowledge by it.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await producer.publish("quotes", b"EURUSD 1.08")
    ...     async with comet.ShareClient(address) as shares:
    ...         [record] = await shares.acquire("work", "quotes", start="earliest")
    ...         print(record.topic, record.partition, record.offset, record.value, record.delivery_count)
    ...         await shares.ack([record.token])
    >>> run(example)
    quotes 0 0 b'EURUSD 1.08' 1
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    headers: HeaderList
    delivery_count: int
    token: str

    @property
    def key_text(self) -> str | None:
        """The key as text. Raises SerdeError if it is not UTF-8."""
        return text_of_key(self.key)


class ShareClient:
    """Acquires records of share groups and acknowledges them; only tokens are kept in between.

    For short-lived programs and gateways: a job takes some records and ends. A long-running program uses
    ShareConsumer; a group may have both. Async; `comet.sync.ShareClient` is the same for synchronous code.

    A lock expires `lock_ms` after the record was acquired, unless the record is acknowledged or extended by then; and
    when the leader of the partition changes. Then the record is delivered again, and its token raises LockExpired.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.ShareClient(address) as shares:
    ...         one, two, three = await shares.acquire("work", "quotes", start="earliest")
    ...         print(await shares.ack([one.token, three.token]))
    ...         await shares.nack([two.token])
    ...         [again] = await shares.acquire("work", "quotes")
    ...         print(again.value, again.delivery_count)
    >>> run(example)
    [None, None]
    b'2' 2
    """

    def __init__(
        self,
        addresses: Addresses = None,
        *,
        name: str = "",
        **seams: Unpack[Seams],
    ) -> None:
        world = World.of(self, {**seams})
        self._client = Client(addresses, name=name, connect=world.connect, random=world.random)
        self._calls = AcquireCalls(self._client)
        self._clock_us = world.clock_us

    async def acquire(
        self,
        group: str,
        topic: str,
        *,
        records_max: int = 100,
        bytes_max: int = 1 << 20,
        wait_ms: int = 0,
        lock_ms: int = limits.LOCK_MS,
        deliveries_max: int = 5,
        dead_letter: str = "",
        by_key: bool = False,
        start: StartLike = "latest",
        filter: str = "",  # noqa: A002 - the name of the option everywhere
    ) -> list[AcquiredRecord]:
        """Acquires at most `records_max` records for `lock_ms`; waits for the first up to `wait_ms`, and if brokers are
        slow about a second more. About `bytes_max`, as the records are stored, but at least one record if there is one.

        The other settings belong to the group: settings that differ from those of its current members are refused with
        InvalidArgument, as with ShareConsumer. A new group begins at `start`. With `filter`, only records that match
        are delivered; the leader settles the others.

        A cancelled call leaves no record acquired. If the connection to a broker breaks while it answers, its records
        stay locked until `lock_ms` have passed.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.ShareClient(address) as shares:
        ...         found = await shares.acquire("work", "quotes", records_max=2, wait_ms=1000, start="earliest")
        ...         print([record.value for record in found])
        >>> run(example)
        [b'1', b'2']
        """
        check_topic_name(group)
        check_topic_name(topic)
        limits.within("records_max", records_max, 1, limits.ACQUIRE_RECORDS_MAX)
        limits.within("bytes_max", bytes_max, 1, limits.UINT32_MAX)
        limits.within("wait_ms", wait_ms, 0, limits.UINT32_MAX)
        limits.within("lock_ms", lock_ms, limits.LOCK_MS_MIN, limits.UINT32_MAX)
        limits.within("deliveries_max", deliveries_max, 0, limits.UINT32_MAX)
        options = pb.ShareOptions(
            lock_ms=lock_ms,
            deliveries_max=deliveries_max,
            by_key=by_key,
            dead_letter=check_topic_name(dead_letter) if dead_letter else "",
            filter=filter,
            start=protobuf.position_to_pb(position(start, now_us=self._clock_us())),
        )
        request = pb.AcquireRequest(
            group=group, topic=topic, records_max=records_max, bytes_max=bytes_max, options=options
        )
        return list(map(_record, await self._calls.acquire(request, wait_ms / 1000)))

    async def ack(self, tokens: Sequence[str], *, group: str = "") -> list[CometError | None]:
        """Accepts records as done. Returns for each None once that is kept, or LockExpired, or the broker's error.

        LockExpired has `outcome: unknown` in its details if an earlier try may have been kept by a leader that
        failed without an answer. An acknowledgement without an answer may be repeated: for a minute the same leader
        repeats its answer. With `group`, tokens of another group are refused with InvalidArgument.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...     async with comet.ShareClient(address) as shares:
        ...         [record] = await shares.acquire("work", "quotes", start="earliest")
        ...         print(await shares.ack([record.token]), await shares.ack([record.token]))
        >>> run(example)
        [None] [None]
        """
        return await self._acknowledge(tokens, group, AckRequest(pb.ACKNOWLEDGE_TYPE_ACCEPT))

    async def nack(self, tokens: Sequence[str], *, delay_ms: int = 0, group: str = "") -> list[CometError | None]:
        """Releases records: they are delivered again after `delay_ms`; after too many deliveries they are dead
        letters.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...     async with comet.ShareClient(address) as shares:
        ...         [record] = await shares.acquire("work", "quotes", start="earliest")
        ...         await shares.nack([record.token], delay_ms=20)
        ...         [record] = await shares.acquire("work", "quotes", wait_ms=5000)
        ...         print(record.delivery_count)
        >>> run(example)
        2
        """
        limits.within("delay_ms", delay_ms, 0, limits.UINT32_MAX)
        return await self._acknowledge(tokens, group, AckRequest(pb.ACKNOWLEDGE_TYPE_RELEASE, delay_ms))

    async def reject(self, tokens: Sequence[str], *, reason: str = "", group: str = "") -> list[CometError | None]:
        """Rejects records: they are never delivered again and go to the dead-letter topic, or are dropped without
        one.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"nonsense")
        ...     async with comet.ShareClient(address) as shares:
        ...         [record] = await shares.acquire("work", "quotes", start="earliest")
        ...         print(await shares.reject([record.token], reason="not a quote"))
        >>> run(example)
        [None]
        """
        return await self._acknowledge(tokens, group, AckRequest(pb.ACKNOWLEDGE_TYPE_REJECT, reason=reason))

    async def extend(self, tokens: Sequence[str], *, group: str = "") -> list[CometError | None]:
        """Renews the locks of records.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...     async with comet.ShareClient(address) as shares:
        ...         [record] = await shares.acquire("work", "quotes", start="earliest")
        ...         print(await shares.extend([record.token]))
        >>> run(example)
        [None]
        """
        return await self._acknowledge(tokens, group, AckRequest(pb.ACKNOWLEDGE_TYPE_EXTEND))

    async def give_back(self, tokens: Sequence[str], *, group: str = "") -> list[CometError | None]:
        """Returns records unprocessed: they are delivered again at once, and this delivery is not counted.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await producer.publish("quotes", b"EURUSD 1.08")
        ...     async with comet.ShareClient(address) as shares:
        ...         [record] = await shares.acquire("work", "quotes", start="earliest")
        ...         await shares.give_back([record.token])
        ...         [record] = await shares.acquire("work", "quotes")
        ...         print(record.delivery_count)
        >>> run(example)
        1
        """
        return await self._acknowledge(tokens, group, AckRequest(pb.ACKNOWLEDGE_TYPE_RETURN))

    async def _acknowledge(self, tokens: Sequence[str], group: str, ack: AckRequest) -> list[CometError | None]:
        self._client.check_open()
        if isinstance(tokens, str):
            raise InvalidArgument("tokens must be a list, also for a single token")
        answers: list[CometError | None] = []
        parsed: list[Token] = []
        indexes: list[int] = []
        for index, text in enumerate(tokens):
            answers.append(None)
            try:
                token = Token.parse(text)
            except InvalidArgument as error:
                answers[index] = error
                continue
            if group and token.group != group:
                answers[index] = InvalidArgument(f"the token is of group {token.group!r}, not of {group!r}")
                continue
            parsed.append(token)
            indexes.append(index)
        for index, answer in zip(indexes, await self._calls.acknowledge(parsed, ack), strict=True):
            answers[index] = answer
        return answers

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _record(taken: AcquiredEntry) -> AcquiredRecord:
    token = taken.token
    return AcquiredRecord(
        token.topic, token.partition, token.offset, taken.key, taken.value, taken.timestamp_us, taken.headers,
        taken.delivery_count, token.text(),
    )  # fmt: skip
