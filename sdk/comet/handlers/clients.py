"""The clients of an app: a consumer for each handler, and the producers that handlers share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from comet.client.bootstrap import Addresses, Bootstrap
from comet.client.client import Client
from comet.client.new_topic import Create, check_create, create_missing
from comet.consumer.consumer import Consumer
from comet.consumer.options import ClientKeywords, ConsumerOptions, chosen
from comet.encryption.keyring import Keyring
from comet.groups.group_consumer import GroupConsumer
from comet.groups.options import GroupOptions, OnPartitions
from comet.handlers.binding import Binding
from comet.handlers.dead_letters import DeadLetters
from comet.handlers.delayed_retries import DelayedRetries
from comet.handlers.memory import MemoryProducer
from comet.handlers.options import DEATHS_SPARE
from comet.handlers.serving import RecordSource
from comet.producer.producer import Producer
from comet.producer.transaction import TransactionalProducer
from comet.share.options import ShareOptions
from comet.share.share_consumer import ShareConsumer
from comet.tracing.clients import process_spans
from comet.tracing.options import Tracing

if TYPE_CHECKING:
    from comet.tracing.spans import ProcessSpans


class AppClients:
    """Makes the clients of one app, and closes its producers. Owned by the app."""

    def __init__(
        self, addresses: Addresses, encryption: Keyring | None, create: Create, tracing: Tracing | bool,
        world: ClientKeywords,
    ) -> None:  # fmt: skip
        check_create(create)
        self.encryption = encryption
        self._tracing = tracing
        self._addresses = addresses
        self._create = create
        self._world = world
        self._producer: Producer | None = None
        self._careful_producer: Producer | None = None
        self.dead_letters = DeadLetters(lambda: self._careful.send)
        self.delayed_retries = DelayedRetries(lambda: self._careful.publish)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The brokers that it was given."""
        return Bootstrap.of(self._addresses).addresses

    @property
    def name(self) -> str:
        return self._world["name"]

    def process_spans(self, one: Binding) -> ProcessSpans | None:
        """The spans of a handler; None if it makes none."""
        return process_spans(self._tracing, self.addresses, self.name, one.group)

    # ---- consumers

    def consumer(self, one: Binding) -> Consumer[Any]:
        assert isinstance(one.reading, ConsumerOptions)
        options = replace(one.reading, encryption=self.encryption, create=self._create_for(one))
        return Consumer(self._addresses, one.topic, type=one.signature.type, options=options, **self._world)

    def group_consumer(self, one: Binding, **hooks: OnPartitions) -> RecordSource:
        assert isinstance(one.reading, GroupOptions)
        given = {"auto_commit": False, "encryption": self.encryption, "create": self._create_for(one), **hooks}
        options = chosen(one.reading, given)
        consumer: RecordSource = GroupConsumer(
            self._addresses, one.topic, group=one.group, type=one.signature.type, options=options, **self._world,
        )  # fmt: skip
        return consumer

    def shared_consumer(self, one: Binding) -> ShareConsumer[Any]:
        assert isinstance(one.reading, ShareOptions)
        options = replace(
            one.reading, renew=True, deliveries_max=one.options.retries + 1 + DEATHS_SPARE,
            dead_letter=one.options.dead_letter, encryption=self.encryption, create=self._create_for(one),
        )  # fmt: skip
        return ShareConsumer(
            self._addresses, one.topic, group=one.group, type=one.signature.type, options=options, **self._world,
        )  # fmt: skip

    def _create_for(self, one: Binding) -> Create:
        return one.reading.create or self._create

    async def create_dead_letter_topics(self, bindings: Iterable[Binding]) -> None:
        """Makes the missing dead-letter topics of handlers with `create`, each with one partition."""
        topics = {one.options.dead_letter for one in bindings if one.options.dead_letter and self._create_for(one)}
        if topics:
            world = self._world
            client = Client(self._addresses, name=world["name"], connect=world["connect"], random=world["random"])
            try:
                await create_missing(client, sorted(topics), True)
            finally:
                await client.close()

    # ---- producers

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                self._addresses, encryption=self.encryption, create=self._create, tracing=self._tracing, **self._world
            )  # fmt: skip
        return self._producer

    @property
    def _careful(self) -> Producer:
        """With acks="all", for dead letters and delayed retries."""
        if self._careful_producer is None:
            self._careful_producer = Producer(
                self._addresses, acks="all", encryption=self.encryption, create=self._create, tracing=self._tracing,
                **self._world,
            )  # fmt: skip
        return self._careful_producer

    def transactional_producer(self, source: RecordSource | None) -> TransactionalProducer:
        return TransactionalProducer(
            self._addresses, group=source or "", encryption=self.encryption, create=self._create,
            tracing=self._tracing, **self._world,
        )  # fmt: skip

    def write_to(self, producer: MemoryProducer) -> None:
        """Writes to the topics of a test, until `close`."""
        self._producer = self._careful_producer = cast("Producer", producer)

    def forget(self) -> None:
        """Leaves the producers as they are."""
        self._producer = self._careful_producer = None

    async def close(self) -> None:
        producers = [producer for producer in (self._producer, self._careful_producer) if producer is not None]
        self._producer = self._careful_producer = None
        for producer in producers:
            await producer.close()
