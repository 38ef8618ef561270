"""The way to the cluster: any of several addresses, what is known of topics, one connection per broker.

Producers and consumers each own one client. They ask it for a partition (`attach`) and get a handle on a live
connection to its leader, or an error that says whether to try again. A broker that cannot be reached is tried again
after a wait that all who need it share, so that a thousand partitions do not make a thousand attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random, SystemRandom
from typing import Any, TypeVar

from google.protobuf.message import Message

from comet import _limits as limits
from comet import _wire
from comet._connection import Attachment, Connection
from comet._retry import Backoff
from comet._transport import Channel, Connect
from comet._tuning import tune_process
from comet.errors import Closed, CometError, InvalidArgument, PartitionNotFound, TopicNotFound, Unavailable
from comet.types import TopicInfo, check_topic_name
from comet.v1 import events_pb2 as pb

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Addresses = str | Sequence[str]


def parse_addresses(addresses: Addresses) -> tuple[str, ...]:
    """The addresses of brokers to begin with.

    >>> parse_addresses("a:9092, b:9092"), parse_addresses("localhost")
    (('a:9092', 'b:9092'), ('localhost:9092',))
    """
    parts: list[Any] = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = tuple(part.strip() for part in parts if isinstance(part, str) and part.strip())
    if not found or len(found) < len(parts):
        raise InvalidArgument(f'give the address of a broker, such as "localhost:9092", not {addresses!r}')
    return tuple(dict.fromkeys(part if _has_port(part) else f"{part}:9092" for part in found))


def _has_port(address: str) -> bool:
    host, colon, port = address.rpartition(":")
    return bool(colon) and port.isdecimal() and (":" not in host or host.endswith("]"))


class Peer:
    """One broker's address: its channel, its connection while there is one, and when to try it again."""

    def __init__(self, client: Client, address: str, random: Random) -> None:
        self.address = address
        self.connection: Connection | None = None
        self._client = client
        self._channel: Channel | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._backoff = Backoff(random)
        self._not_before = 0.0

    async def connect(self) -> Connection:
        """The live connection, or the outcome of the one attempt that everyone shares."""
        if self.connection is not None:
            return self.connection
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name=f"comet: connect {self.address}")
            self._opening.add_done_callback(_look_at)
        return await share(self._opening)

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(self._not_before - loop.time(), 0))
            connection = Connection(
                self.channel(), self.address, client_name=self._client.name, software=self._client.software
            )
            await connection.open()
        except CometError as error:
            self._failed(error)
            raise
        finally:
            self._opening = None
        self._backoff.reset()
        self.connection = connection
        connection.on_lost(self._lost)
        return connection

    def channel(self) -> Channel:
        """The way to the broker for unary calls; a new one after every failure, which so connects afresh."""
        if self._channel is None:
            self._channel = self._client.connect(self.address)
        return self._channel

    def _lost(self, error: CometError) -> None:
        self.connection = None
        self._client.lost(error)
        self._failed(error)

    def _failed(self, error: CometError) -> None:
        self._not_before = asyncio.get_running_loop().time() + self._backoff.next_s(error.retry_after_ms)
        self.renew()

    def renew(self) -> None:
        """Drops a channel that does not work, unless a stream lives on it."""
        if self._channel is not None and self.connection is None:
            self._client.close_later(self._channel)
            self._channel = None

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self.connection is not None:
            await self.connection.close()
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


class Client:
    """Owned by one producer, consumer or admin; belongs to the event loop it is first used on."""

    def __init__(
        self,
        addresses: Addresses,
        *,
        name: str = "",
        connect: Connect | None = None,
        random: Random | None = None,
    ) -> None:
        import comet

        self.bootstrap = parse_addresses(addresses)
        self.name = name
        self.software = f"comet-python/{comet.__version__}"
        self.random = random or SystemRandom()
        self.closed = False
        self._connect = connect
        self._peers: dict[str, Peer] = {}
        self._brokers: dict[int, str] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._fetching: dict[str, asyncio.Task[TopicInfo]] = {}
        self._listeners: list[Callable[[TopicInfo], None]] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._refresher: asyncio.Task[None] | None = None

    # ---- connections

    def connect(self, address: str) -> Channel:
        if self._connect is None:
            tune_process()  # before grpc is imported
            from comet._channel import connect

            self._connect = connect
        return self._connect(address)

    def _peer(self, address: str) -> Peer:
        self.check_open()
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(self, address, self.random)
        return peer

    def check_open(self) -> None:
        if self.closed:
            raise Closed("it was closed")

    async def attach(self, topic: str, partition: int) -> Attachment:
        """The partition on a live connection to its leader. Tries once; after an error that is retriable or says
        that metadata is stale, the next try looks the leader up again."""
        try:
            info = await self.topic(topic)
            if partition >= len(info.partitions):
                raise PartitionNotFound(f"topic {topic!r} has {len(info.partitions)} partitions, so none {partition}")
            address = self._brokers.get(info.partitions[partition].leader)
            if address is None:
                raise Unavailable(f"partition {partition} of {topic!r} has no leader now")
            connection = await self._peer(address).connect()
            if connection.leaving:
                raise Unavailable(f"the broker at {address} is leaving")
            return await connection.attach(topic, partition)
        except CometError as error:
            if error.retriable or error.metadata_stale or isinstance(error, TopicNotFound):
                self.forget(topic)
            raise

    def lost(self, error: CometError) -> None:
        """A connection failed, so who leads what may have changed."""
        del error
        self._topics.clear()

    # ---- unary calls

    async def unary(
        self, method: str, request: Message, response: type[M], timeout_ms: int = limits.REQUEST_TIMEOUT_MS
    ) -> M:
        """Asks any broker, one after the other until one can be reached."""
        error: CometError | None = None
        for address in self._candidates():
            peer = self._peer(address)
            try:
                answer = await peer.channel().unary(method, request, response, timeout_ms / 1000)
            except Unavailable as caught:
                error = caught
                peer.renew()
            else:
                assert isinstance(answer, response)
                return answer
        assert error is not None, "there is always an address to try"
        raise error

    def _candidates(self) -> list[str]:
        """Brokers to ask: those with a live connection, then those given, then those heard of."""
        live = [peer.address for peer in self._peers.values() if peer.connection is not None]
        given = list(self.bootstrap)
        start = self.random.randrange(len(given))
        return list(dict.fromkeys([*live, *given[start:], *given[:start], *self._brokers.values()]))

    # ---- metadata

    async def topic(self, name: str) -> TopicInfo:
        """What is known of a topic, asked for if nothing is. Raises TopicNotFound."""
        known = self._topics.get(name)
        if known is not None:
            return known
        check_topic_name(name)
        fetching = self._fetching.get(name)
        if fetching is None:
            fetching = asyncio.get_running_loop().create_task(self._fetch_topic(name), name=f"comet: look up {name}")
            fetching.add_done_callback(_look_at)
            self._fetching[name] = fetching
        return await share(fetching)

    async def _fetch_topic(self, name: str) -> TopicInfo:
        try:
            found = await self.fetch([name])
        finally:
            self._fetching.pop(name, None)
        if name not in found:
            raise TopicNotFound(f"there is no topic {name!r}; create it first, e.g. with: comet topic create {name}")
        return found[name]

    async def fetch(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Asks the cluster about topics and remembers what it says."""
        wanted = list(names)
        request = pb.FetchMetadataRequest(topics=wanted)
        answer = await self.unary("comet.v1.Comet/FetchMetadata", request, pb.FetchMetadataResponse)
        if answer.brokers:
            self._brokers = {broker.id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        found = {topic.name: _wire.topic_from_pb(topic) for topic in answer.topics}
        for name in wanted:
            self._topics.pop(name, None)
        self._topics.update(found)
        for topic in found.values():
            for listener in list(self._listeners):
                listener(topic)
        return found

    def forget(self, name: str) -> None:
        self._topics.pop(name, None)

    def watch(self, names: Callable[[], Iterable[str]], listener: Callable[[TopicInfo], None]) -> None:
        """Looks the topics up again and again and tells the listener, so that new partitions are noticed."""
        if listener not in self._listeners:
            self._listeners.append(listener)
        if self._refresher is None:
            self._refresher = self.spawn(self._refresh(names))

    async def _refresh(self, names: Callable[[], Iterable[str]]) -> None:
        while True:
            await asyncio.sleep(limits.METADATA_REFRESH_MS / 1000 * (0.75 + self.random.random() / 2))
            wanted = list(names())
            if wanted:
                try:
                    await self.fetch(wanted)
                except CometError:
                    continue  # who needs a broker now hears of it; this was only to stay up to date

    # ---- life

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Runs something in the background; it is cancelled when the client is closed."""
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def close_later(self, channel: Channel) -> None:
        """Closes a channel that is done with; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(_close_channel(channel))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for peer in list(self._peers.values()):
            await peer.close()
        tasks = [*self._background, *self._fetching.values()]
        for task in tasks:
            task.cancel()
        tasks.extend(self._closing)
        if tasks:
            await asyncio.wait(tasks)


async def _close_channel(channel: Channel) -> None:
    await channel.close()


async def share(task: asyncio.Task[T]) -> T:
    """Waits for a task that others wait for too: being cancelled does not cancel it."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():  # by close(), not by whoever cancels us
            raise Closed("it was closed") from None
        raise


def _look_at(task: asyncio.Task[Any]) -> None:
    """Marks a shared task's error as seen: who waits for it gets it, and nobody may be waiting any more."""
    if not task.cancelled():
        task.exception()
