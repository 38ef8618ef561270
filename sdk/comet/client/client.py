"""The client of a cluster: bootstrap addresses, one connection per broker, and cached metadata.

Each producer, consumer and admin owns one. They ask it for a partition (`attach`) and get a handle on a live
connection to its leader or another replica, or an error that says whether to retry. A broker that cannot be reached
is retried after a backoff that all callers share, so that a thousand partitions do not make a thousand attempts. The
connection to a silent broker is closed once the other brokers no longer list it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from comet import limits
from comet.client.bootstrap import Addresses, Bootstrap
from comet.client.metadata import Directory, mark_retrieved, share
from comet.client.retry import Backoff, repeat
from comet.client.wires import Wires
from comet.entities import BrokerInfo, TopicInfo
from comet.errors import Closed, CometError, CredentialsRefused, PartitionNotFound, TopicNotFound, Unavailable
from comet.v1 import records_pb2 as pb
from comet.wire.acting import ActingFor
from comet.wire.transport import Channel, Connect
from comet.wire.tuning import tune_process

if TYPE_CHECKING:
    from comet.client.connection import Attachment, Connection
    from comet.wire.bearer import Bearer

log = logging.getLogger("comet")

M = TypeVar("M", bound=Message)
# Chooses the broker to use for a partition from the topic's metadata; None: there is none.
Choose = Callable[[TopicInfo, int], int | None]

_FETCH = "comet.v1.Comet/FetchMetadata"


class Peer:
    """One broker's address, with its channel, its connection if there is one, and its backoff."""

    def __init__(self, client: Client, address: str, random: Random) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.calls = 0  # unary ones under way
        self._client = client
        self._channel: Channel | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._backoff = Backoff(random)
        self._not_before = 0.0
        self._reason = ""

    async def connect(self) -> Connection:
        """The live connection, or the result of the one attempt that all callers share."""
        if self.connection is not None:
            return self.connection
        if self._opening is None:
            loop = asyncio.get_running_loop()
            wait_s = self._not_before - loop.time()
            if wait_s * 1000 > limits.BACKOFF_FIRST_MS:
                # Waiting here would keep the caller from trying another broker.
                wait_ms = wait_s * 1000
                raise Unavailable(f"broker at {self.address} failed; next attempt in {wait_ms:.0f} ms: {self._reason}")
            self._opening = loop.create_task(self._open(), name=f"comet: connect {self.address}")
            self._opening.add_done_callback(mark_retrieved)
        return await share(self._opening)

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(self._not_before - loop.time(), 0))
            connection = await self._opened()
        except CometError as error:
            self._failed(error)
            raise
        finally:
            self._opening = None
        self._backoff.reset()
        self.connection = connection
        connection.on_silent = self._client.silent
        connection.on_lost(self._lost)
        if self.over_wire is not None:
            for peer in self._client._peers.values():  # the channels have done their work: they fetched the metadata
                peer.drop_idle_channel()
        return connection

    async def _opened(self) -> Connection:
        """A new connection. A refused token is renewed, once."""
        bearer = await self._client.ready()
        presented = "" if bearer is None else bearer.text()
        try:
            return await self._new()
        except CredentialsRefused:
            if bearer is None or not await bearer.renewed(presented):
                raise
        return await self._new()

    async def _new(self) -> Connection:
        from comet.client.connection import Connection  # here: clients without streams do without it

        client = self._client
        stream = await client.wires.open(self.address) or self.channel().stream()
        connection = Connection(stream, self.address, client_name=client.name)
        try:
            await connection.open()
        except CometError:
            if isinstance(connection.lost, CredentialsRefused):
                raise connection.lost from None
            raise
        return connection

    @property
    def over_wire(self) -> Connection | None:
        """Its connection, if that is one over the wire, which carries requests for metadata as well."""
        connection = self.connection
        return connection if connection is not None and connection.queue.over_wire else None

    @property
    def failing(self) -> bool:
        """Whether it failed, and its backoff is not over."""
        return self.connection is None and self._not_before > asyncio.get_running_loop().time()

    @property
    def troubled(self) -> bool:
        """Whether it is failing, or silent, which need not be a failure."""
        return self.failing or (self.connection is not None and self.connection.watch.silent_s > 0)

    def reached(self) -> None:
        """Ends the backoff: the broker has answered."""
        self._not_before = 0.0

    def channel(self) -> Channel:
        """The channel for unary calls; a new one after every failure, so that it connects afresh."""
        if self._channel is None:
            self._channel = self._client.connect(self.address)
        return self._channel

    def _lost(self, error: CometError) -> None:
        self.connection = None
        self._client.lost(error)
        self._failed(error)

    def _failed(self, error: CometError) -> None:
        self._reason = error.message
        self._not_before = asyncio.get_running_loop().time() + self._backoff.next_s(error.retry_after_ms)
        self.renew()

    def renew(self) -> None:
        """Drops a failed channel, unless a stream still uses it."""
        if self.connection is None:
            self._drop_channel()

    def drop_idle_channel(self) -> None:
        """Drops a channel that neither a stream nor a call uses: an open one takes the broker 20 kB."""
        unused = self._opening is None if self.connection is None else self.over_wire is not None
        if unused and not self.calls:
            self._drop_channel()

    def _drop_channel(self) -> None:
        if self._channel is not None:
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
        found = Bootstrap.of(addresses)
        self.bootstrap = found.addresses
        self.name = name
        self.random = random or SystemRandom()
        self.salt = self.random.getrandbits(16)  # so that clients do not all begin with the same broker
        self.closed = False
        self._connect = connect
        self._security = found
        self.wires = Wires("grpc" if connect else found.transport, found.tls, found.bearer)
        self._keeper: asyncio.Task[None] | None = None  # renews the token
        self._peers: dict[str, Peer] = {}
        self._directory = Directory(self._fetch_metadata, self.random)
        self._background: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._refresher: asyncio.Task[None] | None = None
        self._inquiry: asyncio.Task[None] | None = None

    # ---- connections

    def connect(self, address: str) -> Channel:
        if self._connect is None:
            tune_process()  # before grpc is imported
            from comet.wire.grpc_channel import connect

            self._connect = partial(connect, tls=self._security.tls, bearer=self._security.bearer)
        return self._connect(address)

    async def ready(self) -> Bearer | None:
        """The credential that connections present, once there is one; from then on it is renewed in the background.
        Raises Unavailable or CredentialsRefused."""
        bearer = self._security.bearer
        if bearer is not None:
            if self._keeper is None:
                self._keeper = self.spawn(bearer.keep())
            await bearer.ready()
        return bearer

    def _peer(self, address: str) -> Peer:
        self.check_open()
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(self, address, self.random)
        return peer

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the client was closed")

    async def attach(self, topic: str, partition: int, choose: Choose | None = None) -> Attachment:
        """Attaches to a partition at its leader, or at the broker that `choose` picks. Tries once; after an error that
        is retriable or says that metadata is stale, the next try fetches the metadata again."""
        info: TopicInfo | None = None
        try:
            info = await self._directory.topic(topic)
            if partition >= len(info.partitions):
                raise PartitionNotFound(
                    f"topic {topic!r} has the partitions 0 to {len(info.partitions) - 1}, not {partition}"
                )
            broker = info.partitions[partition].leader if choose is None else choose(info, partition)
            address = self._directory.address(broker)
            if address is None:
                raise Unavailable(f"partition {partition} of {topic!r} has no leader now")
            return await (await self.connection(address)).attach(topic, partition)
        except CometError as error:
            if info is not None and (error.retriable or error.metadata_stale or isinstance(error, TopicNotFound)):
                self._directory.forget(topic, info)
            raise

    async def connection(self, address: str) -> Connection:
        """A live connection to the broker at an address. Raises Unavailable if it is shutting down. Tries once."""
        connection = await self._peer(address).connect()
        if connection.leaving:
            raise Unavailable(f"the broker at {address} is shutting down")
        return connection

    def lost(self, error: CometError) -> None:
        """Drops cached metadata after a connection failed: leaders may have changed."""
        del error
        self._directory.forget_all()

    def misled(self, topic: str, partition: int, broker: int, error: CometError) -> None:
        """Handles a broker's answer that it does not lead a partition."""
        self.wires.learn_leader(error)
        self._directory.misled(topic, partition, broker, error)

    def broker(self, broker: int | None) -> BrokerInfo | None:
        """A broker of the cluster; None if it is unknown, or cannot be reached now."""
        known = None if broker is None else self._directory.brokers.get(broker)
        if known is None:
            return None
        peer = self._peers.get(f"{known.host}:{known.port}")
        return None if peer is not None and peer.failing else known

    def silent(self, connection: Connection) -> None:
        """Asks other brokers about one that has been silent for a while."""
        if len(self._directory.brokers) > 1 and self._inquiry is None and not self.closed:
            self._inquiry = self.spawn(self._inquire(connection))

    async def _inquire(self, silent: Connection) -> None:
        topics = self._directory.topics()
        try:
            await self._directory.fetch(topics)
        except CometError:
            return  # no answer: the bound of silence decides
        finally:
            self._inquiry = None
        if silent.broker_id not in self._directory.brokers and silent.watch.silent_s:
            silent.fail(Unavailable(f"the broker at {silent.address} is silent and no longer in the cluster"))

    # ---- unary calls

    async def unary(
        self,
        method: str,
        request: Message,
        response: type[M],
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        *,
        at: str | None = None,
        acting: ActingFor | None = None,
    ) -> M:
        """Calls any broker, or the one at an address: one after the other, until one can be reached."""

        async def once(left_ms: int) -> M:
            failures: list[CometError] = []
            for address in self._candidates() if at is None else [at]:
                try:
                    return await self.unary_at(address, method, request, response, left_ms, acting)
                except Unavailable as error:
                    failures.append(error)
            raise _no_answer(failures)

        return await repeat(once, timeout_ms, self.random)

    async def unary_at(
        self,
        address: str,
        method: str,
        request: Message,
        response: type[M],
        timeout_ms: int,
        acting: ActingFor | None = None,
    ) -> M:
        """Calls the broker at an address. Tries once."""
        peer = self._peer(address)
        if isinstance(request, pb.FetchMetadataRequest) and peer.over_wire is not None:
            over = await peer.over_wire.call(pb.ClientFrame(fetch_metadata=request), timeout_ms)
            assert isinstance(over.metadata, response)
            return over.metadata
        await self.ready()
        peer.calls += 1
        try:
            answer = await peer.channel().unary(method, request, response, timeout_ms / 1000, acting)
        except Unavailable:
            peer.renew()
            raise
        finally:
            peer.calls -= 1
        peer.reached()
        assert isinstance(answer, response)
        return answer

    async def _fetch_metadata(self, topics: list[str]) -> pb.FetchMetadataResponse:
        answer = await self.request(_FETCH, pb.FetchMetadataRequest(topics=topics), pb.FetchMetadataResponse)
        self.wires.learn(answer)
        return answer

    async def request(self, method: str, request: Message, response: type[M]) -> M:
        """Calls one broker, and one more whenever a call fails or takes long; the first answer counts."""

        async def once(left_ms: int) -> M:
            candidates = self._candidates()
            calls: set[asyncio.Task[M]] = set()
            failures: list[CometError] = []
            try:
                while candidates or calls:
                    if candidates:
                        address = candidates.pop(0)
                        call = self.unary_at(address, method, request, response, left_ms)
                        task = self.spawn(call)
                        task.add_done_callback(mark_retrieved)  # only the first answer is read
                        calls.add(task)
                    patience_s = limits.METADATA_PATIENCE_MS / 1000 if candidates else None
                    done, calls = await asyncio.wait(calls, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        error = task.exception()
                        if error is None:
                            return task.result()
                        if not isinstance(error, CometError):
                            raise error
                        failures.append(error)
            finally:
                for task in calls:
                    task.cancel()
            raise _no_answer(failures)

        return await repeat(once, limits.REQUEST_TIMEOUT_MS, self.random)

    def _candidates(self) -> list[str]:
        """Brokers to call, in order: connected ones, other known ones, and failing or silent ones last."""
        found = list(dict.fromkeys([*self.bootstrap, *self._directory.addresses]))
        self.random.shuffle(found)

        def rank(address: str) -> tuple[bool, bool]:
            peer = self._peers.get(address)
            return (False, True) if peer is None else (peer.troubled, peer.connection is None)

        return sorted(found, key=rank)

    # ---- metadata

    async def topic(self, name: str) -> TopicInfo:
        """The metadata of a topic, from the cache or else fetched. Raises TopicNotFound."""
        return await self._directory.topic(name)

    async def fetch(self, names: Collection[str]) -> dict[str, TopicInfo]:
        """Fetches the metadata of topics, and caches it."""
        return await self._directory.fetch(names)

    def forget(self, name: str) -> None:
        self._directory.forget(name)

    def watch(self, names: Callable[[], Iterable[str]], listener: Callable[[TopicInfo], None]) -> None:
        """Refreshes the topics periodically and calls the listener, so that new partitions are noticed."""
        self._directory.listen(listener)
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
                    continue  # requests report such errors; a refresh can wait for its next round

    # ---- life

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Runs a coroutine in the background; `close` cancels it."""
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def close_later(self, channel: Channel) -> None:
        """Closes an unused channel in the background; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(_close_channel(channel))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for peer in list(self._peers.values()):
            await peer.close()
        await self._directory.close()
        tasks = [*self._background]
        for task in tasks:
            task.cancel()
        tasks.extend(self._closing)
        if tasks:
            await asyncio.wait(tasks)


async def _close_channel(channel: Channel) -> None:
    await channel.close()


def _no_answer(failures: list[CometError]) -> CometError:
    """The error of a call that no broker answered."""
    assert failures, "there is always an address to try"
    first = next((error for error in failures if not isinstance(error, Unavailable)), failures[0])
    if len(failures) == 1:
        return first
    advice_ms = max(error.retry_after_ms for error in failures)
    tried = "; ".join(dict.fromkeys(error.message for error in failures))
    message = f"none of {len(failures)} brokers answered: {tried}"
    return type(first)(message, details=first.details, retry_after_ms=advice_ms)
