"""Topics that clients make: with `create`, a producer, a consumer or an app makes a topic that is missing.

look up ─┬─ there ────────────────────────────────────────────► used as it is
         └─ missing ─► CreateTopic ─┬─ made, or made meanwhile ─► looked up until the brokers know it
                                    └─ Forbidden ─────────────► raised, with the rule that it needs
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from comet import limits
from comet.client.retry import Backoff
from comet.errors import CometError, Forbidden, InvalidArgument, TopicExists, TopicNotFound
from comet.settings.topic import REPLICAS_MAX, TopicConfig
from comet.types import check_topic_name
from comet.wire import protobuf

if TYPE_CHECKING:
    from comet.client.client import Client
    from comet.entities import TopicInfo
    from comet.v1 import admin_pb2 as admin

log = logging.getLogger("comet")

_METHOD = "comet.v1.Admin/CreateTopic"


class NewTopic:
    """What a topic gets that a client makes, for `create=`: partitions, replicas (0: the cluster's default), and
    settings by name. A topic that exists is left as it is.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address, create=comet.NewTopic(partitions=4, flush="always")) as producer:
    ...         await producer.publish("trades", b"EURUSD 1.08")
    ...     async with comet.Admin(address) as admin:
    ...         topic = await admin.describe_topic("trades")
    ...         print(len(topic.partitions), topic.config.flush.value)
    >>> run(example)
    4 always
    """

    __slots__ = ("partitions", "replicas", "settings")

    def __init__(self, partitions: int = 1, *, replicas: int = 0, **settings: Any) -> None:
        self.partitions = partitions
        self.replicas = replicas
        self.settings: Mapping[str, Any] = settings
        topic_creation("checked", partitions, replicas, None, settings)

    def __repr__(self) -> str:
        named = {"partitions": self.partitions, "replicas": self.replicas, **self.settings}
        return f"NewTopic({', '.join(f'{name}={value!r}' for name, value in named.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NewTopic) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


Create = bool | NewTopic


def check_create(create: Create) -> None:
    """Raises InvalidArgument."""
    if not isinstance(create, bool | NewTopic):
        raise InvalidArgument(f"create is True, False or a comet.NewTopic, not {create!r}")


def topic_creation(
    name: str, partitions: int, replicas: int, config: TopicConfig | None, settings: Mapping[str, Any]
) -> admin.CreateTopicRequest:
    """The request. Raises InvalidArgument."""
    from comet.v1 import admin_pb2 as admin

    if partitions < 1:
        raise InvalidArgument(f"partitions must be at least 1, not {partitions!r}")
    if not 0 <= replicas <= REPLICAS_MAX:
        raise InvalidArgument(f"replicas must be from 0 (the cluster's default) to {REPLICAS_MAX}, not {replicas!r}")
    return admin.CreateTopicRequest(
        name=check_topic_name(name),
        partitions=partitions,
        replicas=replicas,
        config=protobuf.given_to_pb(config, settings),
    )


async def create_missing(client: Client, topics: Iterable[str], create: Create) -> None:
    """Makes those topics that do not exist, if `create` says so. Raises Forbidden, Unavailable."""
    if create:
        for topic in topics:
            await found_or_created(client, topic, create)


async def found_or_created(client: Client, topic: str, create: Create) -> TopicInfo:
    """The metadata of a topic, which is made if it is missing. Safe if several clients do so at once."""
    try:
        return await client.topic(topic)
    except TopicNotFound:
        if not create:
            raise
    await _create(client, topic, NewTopic() if isinstance(create, bool) else create)
    backoff = Backoff(client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
    give_up = asyncio.get_running_loop().time() + limits.CONNECT_TIMEOUT_MS / 1000
    while True:
        try:
            return await client.topic(topic)
        except CometError as error:
            missing = isinstance(error, TopicNotFound)  # at a broker that has not heard of it yet
            if not (missing or error.retriable) or asyncio.get_running_loop().time() >= give_up:
                raise
            client.forget(topic)
            await asyncio.sleep(backoff.next_s(error.retry_after_ms))


async def _create(client: Client, topic: str, create: NewTopic) -> None:
    from comet.v1 import types_pb2 as types

    request = topic_creation(topic, create.partitions, create.replicas, None, create.settings)
    try:
        await client.unary(_METHOD, request, types.Topic, limits.REQUEST_TIMEOUT_MS)
        log.info("comet: created topic %r: %r", topic, create, extra={"topic": topic})
    except TopicExists:
        pass  # made by another client meanwhile
    except Forbidden as error:
        raise Forbidden(
            f"topic {topic!r} does not exist, and create= cannot make it: {error.message}", details=error.details
        ) from error
