"""Publishing with an idempotency key: a request that is repeated writes its records once.

    records ─► one request ─► the leader of the partition of the first ─► parts of other partitions to their leaders
                                                                          receipts of all, in order

The request is the same each time it is sent, so the brokers find its key and its content in their logs. Encrypted
values differ with each call: then a MAC of the plaintext stands for the content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from comet.client.client import Client
from comet.client.leader_request import call_leader
from comet.encryption.encryptor import Encryptor
from comet.errors import InvalidArgument
from comet.producer.partitioner import check_timestamp, header_pairs, key_bytes
from comet.records import content_bytes, partition_for
from comet.types import Acks, Receipt, TopicPartition, check_topic_name
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL, ACKS_LEADER
from comet.values.record import NewRecord
from comet.wire.contents import contents_of
from comet.wire.record_ttl import check_ttl

_PUBLISH: Final = "comet.v1.Comet/Publish"
_ACKS: Final = {Acks.LEADER: ACKS_LEADER, Acks.ALL: ACKS_ALL}
_KEY_CHARS_MAX: Final = 200


def request_of(
    topic: str, records: Sequence[NewRecord], key: str, acks: Acks, encode: Callable[[Any], bytes | None]
) -> pb.PublishRequest:
    """The checked request. Raises InvalidArgument if no broker would accept it."""
    if not isinstance(key, str) or not 1 <= len(key) <= _KEY_CHARS_MAX:
        raise InvalidArgument(f"an idempotency key must be text of 1 to {_KEY_CHARS_MAX} characters, not {key!r}")
    if not records:
        raise InvalidArgument("no records to publish: give at least one")
    if acks is Acks.NONE:
        raise InvalidArgument('an idempotency key needs acks=1 or acks="all": acks=0 is never acknowledged')
    request = pb.PublishRequest(topic=check_topic_name(topic), acks=_ACKS[acks])
    try:
        request.idempotency_key = key
        request.records.extend([record_to_pb(record, encode) for record in records])
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"the records cannot be published: {error}") from error
    return request


def record_to_pb(record: NewRecord, encode: Callable[[Any], bytes | None]) -> pb.Record:
    """A record of a request, whose value `encode` makes bytes of. Raises InvalidArgument, ValueError, TypeError."""
    value, key, headers, timestamp_us, partition, ttl_ms = record
    return pb.Record(
        value=encode(value),
        key=None if key is None else key_bytes(key),
        headers=[pb.Header(name=name, value=content) for name, content in header_pairs(headers)] if headers else None,
        timestamp_us=0 if timestamp_us is None else check_timestamp(timestamp_us),
        partition=partition,
        ttl_ms=0 if ttl_ms is None else check_ttl(ttl_ms),
    )


async def encrypt(request: pb.PublishRequest, encryptor: Encryptor) -> None:
    """Encrypts the values of a request, which also gets a MAC of its plaintext."""
    of = f"{request.topic}\0{request.idempotency_key}\0".encode()
    request.content_mac = await encryptor.mac(of + content_bytes(contents_of(request)))
    for record in request.records:
        if record.HasField("value"):
            key = record.key if record.HasField("key") else None
            encrypted = await encryptor.encrypt(request.topic, record.value, key)
            assert encrypted is not None, "only a tombstone stays None"
            record.value = encrypted


async def publish_once(client: Client, request: pb.PublishRequest, timeout_s: float) -> list[Receipt]:
    """The receipts of all records. Raises Timeout if it is unknown whether all are written: repeat the call then."""

    async def where() -> TopicPartition:
        info = await client.topic(request.topic)
        return TopicPartition(request.topic, partition_of(request, len(info.partitions)))

    give_up = asyncio.get_running_loop().time() + timeout_s
    answer = await call_leader(
        client, where, _PUBLISH, lambda: request, pb.PublishResponse, give_up=give_up, writes=True
    )
    return [
        Receipt(request.topic, receipt.partition, receipt.offset, receipt.append_time_us, receipt.duplicate)
        for receipt in answer.receipts
    ]


def partition_of(request: pb.PublishRequest, partitions: int) -> int:
    """The partition that a broker will choose for the first record."""
    first = request.records[0]
    if first.HasField("partition"):
        return first.partition
    return partition_for(first.key if first.HasField("key") else request.idempotency_key.encode(), partitions)
