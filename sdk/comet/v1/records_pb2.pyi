from comet.v1 import types_pb2 as _types_pb2
from comet.v1 import groups_pb2 as _groups_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchMetadataRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class FetchMetadataResponse(_message.Message):
    __slots__ = ("cluster_id", "broker_id", "brokers", "topics")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    broker_id: int
    brokers: _containers.RepeatedCompositeFieldContainer[_types_pb2.Broker]
    topics: _containers.RepeatedCompositeFieldContainer[_types_pb2.Topic]
    def __init__(self, cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[_types_pb2.Broker, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[_types_pb2.Topic, _Mapping]]] = ...) -> None: ...

class ClientFrame(_message.Message):
    __slots__ = ("request", "hello", "produce", "attach", "subscribe", "unsubscribe", "credit", "find_offset", "ping", "fetch_metadata", "fetch", "publish", "read_keys", "join", "leave", "heartbeat", "release", "commit", "fetch_committed", "share_subscribe", "acknowledge", "open_transactions", "end_transaction")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    FIND_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    FETCH_METADATA_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    READ_KEYS_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    FETCH_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SHARE_SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    END_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    request: int
    hello: Hello
    produce: Produce
    attach: Attach
    subscribe: Subscribe
    unsubscribe: Unsubscribe
    credit: Credit
    find_offset: FindOffset
    ping: Ping
    fetch_metadata: FetchMetadataRequest
    fetch: FetchRequest
    publish: PublishRequest
    read_keys: ReadKeysRequest
    join: _groups_pb2.Join
    leave: _groups_pb2.Leave
    heartbeat: _groups_pb2.Heartbeat
    release: _groups_pb2.Release
    commit: _groups_pb2.Commit
    fetch_committed: _groups_pb2.FetchCommitted
    share_subscribe: _groups_pb2.ShareSubscribe
    acknowledge: _groups_pb2.Acknowledge
    open_transactions: _groups_pb2.OpenTransactions
    end_transaction: _groups_pb2.EndTransaction
    def __init__(self, request: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., produce: _Optional[_Union[Produce, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., unsubscribe: _Optional[_Union[Unsubscribe, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., find_offset: _Optional[_Union[FindOffset, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., fetch_metadata: _Optional[_Union[FetchMetadataRequest, _Mapping]] = ..., fetch: _Optional[_Union[FetchRequest, _Mapping]] = ..., publish: _Optional[_Union[PublishRequest, _Mapping]] = ..., read_keys: _Optional[_Union[ReadKeysRequest, _Mapping]] = ..., join: _Optional[_Union[_groups_pb2.Join, _Mapping]] = ..., leave: _Optional[_Union[_groups_pb2.Leave, _Mapping]] = ..., heartbeat: _Optional[_Union[_groups_pb2.Heartbeat, _Mapping]] = ..., release: _Optional[_Union[_groups_pb2.Release, _Mapping]] = ..., commit: _Optional[_Union[_groups_pb2.Commit, _Mapping]] = ..., fetch_committed: _Optional[_Union[_groups_pb2.FetchCommitted, _Mapping]] = ..., share_subscribe: _Optional[_Union[_groups_pb2.ShareSubscribe, _Mapping]] = ..., acknowledge: _Optional[_Union[_groups_pb2.Acknowledge, _Mapping]] = ..., open_transactions: _Optional[_Union[_groups_pb2.OpenTransactions, _Mapping]] = ..., end_transaction: _Optional[_Union[_groups_pb2.EndTransaction, _Mapping]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("request", "welcome", "delivery", "acks", "attached", "subscribed", "unsubscribed", "error", "found_offset", "pong", "go_away", "metadata", "fetched", "published", "keys", "joined", "left", "assignment", "released", "committed", "evicted", "share_subscribed", "share_delivery", "acknowledged", "opened_transactions", "ended_transaction", "aborted")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FOUND_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    SHARE_SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    SHARE_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    OPENED_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    ENDED_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    request: int
    welcome: Welcome
    delivery: Delivery
    acks: ProduceAcks
    attached: Attached
    subscribed: Subscribed
    unsubscribed: Unsubscribed
    error: StreamError
    found_offset: FoundOffset
    pong: Pong
    go_away: GoAway
    metadata: FetchMetadataResponse
    fetched: FetchResponse
    published: PublishResponse
    keys: ReadKeysResponse
    joined: _groups_pb2.Joined
    left: _groups_pb2.Left
    assignment: _groups_pb2.Assignment
    released: _groups_pb2.Released
    committed: _groups_pb2.Committed
    evicted: _groups_pb2.Evicted
    share_subscribed: _groups_pb2.ShareSubscribed
    share_delivery: _groups_pb2.ShareDelivery
    acknowledged: _groups_pb2.Acknowledged
    opened_transactions: _groups_pb2.OpenedTransactions
    ended_transaction: _groups_pb2.EndedTransaction
    aborted: _groups_pb2.Aborted
    def __init__(self, request: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ..., acks: _Optional[_Union[ProduceAcks, _Mapping]] = ..., attached: _Optional[_Union[Attached, _Mapping]] = ..., subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., unsubscribed: _Optional[_Union[Unsubscribed, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ..., found_offset: _Optional[_Union[FoundOffset, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., metadata: _Optional[_Union[FetchMetadataResponse, _Mapping]] = ..., fetched: _Optional[_Union[FetchResponse, _Mapping]] = ..., published: _Optional[_Union[PublishResponse, _Mapping]] = ..., keys: _Optional[_Union[ReadKeysResponse, _Mapping]] = ..., joined: _Optional[_Union[_groups_pb2.Joined, _Mapping]] = ..., left: _Optional[_Union[_groups_pb2.Left, _Mapping]] = ..., assignment: _Optional[_Union[_groups_pb2.Assignment, _Mapping]] = ..., released: _Optional[_Union[_groups_pb2.Released, _Mapping]] = ..., committed: _Optional[_Union[_groups_pb2.Committed, _Mapping]] = ..., evicted: _Optional[_Union[_groups_pb2.Evicted, _Mapping]] = ..., share_subscribed: _Optional[_Union[_groups_pb2.ShareSubscribed, _Mapping]] = ..., share_delivery: _Optional[_Union[_groups_pb2.ShareDelivery, _Mapping]] = ..., acknowledged: _Optional[_Union[_groups_pb2.Acknowledged, _Mapping]] = ..., opened_transactions: _Optional[_Union[_groups_pb2.OpenedTransactions, _Mapping]] = ..., ended_transaction: _Optional[_Union[_groups_pb2.EndedTransaction, _Mapping]] = ..., aborted: _Optional[_Union[_groups_pb2.Aborted, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("client", "software", "heartbeats")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    client: str
    software: str
    heartbeats: bool
    def __init__(self, client: _Optional[str] = ..., software: _Optional[str] = ..., heartbeats: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("cluster_id", "broker_id", "version", "batch_bytes_max", "credit_bytes_max")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    broker_id: int
    version: str
    batch_bytes_max: int
    credit_bytes_max: int
    def __init__(self, cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., version: _Optional[str] = ..., batch_bytes_max: _Optional[int] = ..., credit_bytes_max: _Optional[int] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("partition", "topic_id", "leader_epoch", "log_start", "high_watermark", "leader")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    partition: int
    topic_id: bytes
    leader_epoch: int
    log_start: int
    high_watermark: int
    leader: bool
    def __init__(self, partition: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., leader_epoch: _Optional[int] = ..., log_start: _Optional[int] = ..., high_watermark: _Optional[int] = ..., leader: _Optional[bool] = ...) -> None: ...

class Produce(_message.Message):
    __slots__ = ("partition", "acks", "batch")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    acks: _types_pb2.Acks
    batch: bytes
    def __init__(self, partition: _Optional[int] = ..., acks: _Optional[_Union[_types_pb2.Acks, str]] = ..., batch: _Optional[bytes] = ...) -> None: ...

class ProduceAcks(_message.Message):
    __slots__ = ("requests", "base_offsets", "append_times_us", "throttled_ms")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMES_US_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedScalarFieldContainer[int]
    base_offsets: _containers.RepeatedScalarFieldContainer[int]
    append_times_us: _containers.RepeatedScalarFieldContainer[int]
    throttled_ms: int
    def __init__(self, requests: _Optional[_Iterable[int]] = ..., base_offsets: _Optional[_Iterable[int]] = ..., append_times_us: _Optional[_Iterable[int]] = ..., throttled_ms: _Optional[int] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("subscription", "starts", "credit", "leader_only", "uncommitted", "filter")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    LEADER_ONLY_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    starts: _containers.RepeatedCompositeFieldContainer[Start]
    credit: int
    leader_only: bool
    uncommitted: bool
    filter: str
    def __init__(self, subscription: _Optional[int] = ..., starts: _Optional[_Iterable[_Union[Start, _Mapping]]] = ..., credit: _Optional[int] = ..., leader_only: _Optional[bool] = ..., uncommitted: _Optional[bool] = ..., filter: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("partition", "position", "leader_epoch")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    position: _types_pb2.Position
    leader_epoch: int
    def __init__(self, partition: _Optional[int] = ..., position: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class Subscribed(_message.Message):
    __slots__ = ("subscription", "partitions")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    partitions: _containers.RepeatedCompositeFieldContainer[SubscribedPartition]
    def __init__(self, subscription: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[SubscribedPartition, _Mapping]]] = ...) -> None: ...

class SubscribedPartition(_message.Message):
    __slots__ = ("partition", "offset", "high_watermark")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    high_watermark: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., high_watermark: _Optional[int] = ...) -> None: ...

class Unsubscribe(_message.Message):
    __slots__ = ("subscription", "partitions")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, subscription: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class Unsubscribed(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    def __init__(self, subscription: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("subscription", "bytes")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    bytes: int
    def __init__(self, subscription: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("partition", "high_watermark", "batches", "leader_epoch")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    high_watermark: int
    batches: bytes
    leader_epoch: int
    def __init__(self, partition: _Optional[int] = ..., high_watermark: _Optional[int] = ..., batches: _Optional[bytes] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class FindOffset(_message.Message):
    __slots__ = ("partition", "position", "uncommitted")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    position: _types_pb2.Position
    uncommitted: bool
    def __init__(self, partition: _Optional[int] = ..., position: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., uncommitted: _Optional[bool] = ...) -> None: ...

class FoundOffset(_message.Message):
    __slots__ = ("offset", "log_start", "high_watermark")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    offset: int
    log_start: int
    high_watermark: int
    def __init__(self, offset: _Optional[int] = ..., log_start: _Optional[int] = ..., high_watermark: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pong(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("error", "subscription", "partition")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    error: _types_pb2.Error
    subscription: int
    partition: int
    def __init__(self, error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ..., subscription: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("key", "value", "headers", "timestamp_us", "offset", "partition", "expected", "ttl_ms", "expires_us")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    timestamp_us: int
    offset: int
    partition: int
    expected: int
    ttl_ms: int
    expires_us: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., timestamp_us: _Optional[int] = ..., offset: _Optional[int] = ..., partition: _Optional[int] = ..., expected: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., expires_us: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("topic", "partition", "records", "acks", "producer_id", "producer_epoch", "sequence", "idempotency_key", "content_digest", "content_mac", "transactional", "forwarded")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONTENT_MAC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    acks: _types_pb2.Acks
    producer_id: int
    producer_epoch: int
    sequence: int
    idempotency_key: str
    content_digest: int
    content_mac: bytes
    transactional: bool
    forwarded: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., acks: _Optional[_Union[_types_pb2.Acks, str]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., content_digest: _Optional[int] = ..., content_mac: _Optional[bytes] = ..., transactional: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("receipts",)
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    def __init__(self, receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("partition", "offset", "duplicate", "append_time_us")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    duplicate: bool
    append_time_us: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., duplicate: _Optional[bool] = ..., append_time_us: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("topic", "partition", "start", "records_max", "bytes_max", "wait_ms", "uncommitted", "whole_batches", "leader_epoch", "topic_id", "filter", "forwarded")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    RECORDS_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    start: _types_pb2.Position
    records_max: int
    bytes_max: int
    wait_ms: int
    uncommitted: bool
    whole_batches: bool
    leader_epoch: int
    topic_id: bytes
    filter: str
    forwarded: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., start: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., records_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., uncommitted: _Optional[bool] = ..., whole_batches: _Optional[bool] = ..., leader_epoch: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., filter: _Optional[str] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("records", "next_offset", "log_start", "high_watermark", "batches", "leader_epoch", "aborted", "first_offset", "readable_end", "clean_end", "min_timestamp_us", "max_timestamp_us")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    READABLE_END_FIELD_NUMBER: _ClassVar[int]
    CLEAN_END_FIELD_NUMBER: _ClassVar[int]
    MIN_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    next_offset: int
    log_start: int
    high_watermark: int
    batches: bytes
    leader_epoch: int
    aborted: _containers.RepeatedCompositeFieldContainer[_groups_pb2.AbortedTransaction]
    first_offset: int
    readable_end: int
    clean_end: int
    min_timestamp_us: int
    max_timestamp_us: int
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., next_offset: _Optional[int] = ..., log_start: _Optional[int] = ..., high_watermark: _Optional[int] = ..., batches: _Optional[bytes] = ..., leader_epoch: _Optional[int] = ..., aborted: _Optional[_Iterable[_Union[_groups_pb2.AbortedTransaction, _Mapping]]] = ..., first_offset: _Optional[int] = ..., readable_end: _Optional[int] = ..., clean_end: _Optional[int] = ..., min_timestamp_us: _Optional[int] = ..., max_timestamp_us: _Optional[int] = ...) -> None: ...

class ReadKeysRequest(_message.Message):
    __slots__ = ("topic", "partition", "stale", "keys", "range", "history", "revision", "forwarded")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    stale: bool
    keys: KeyList
    range: KeyRange
    history: KeyHistory
    revision: KeyRevision
    forwarded: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., stale: _Optional[bool] = ..., keys: _Optional[_Union[KeyList, _Mapping]] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., history: _Optional[_Union[KeyHistory, _Mapping]] = ..., revision: _Optional[_Union[KeyRevision, _Mapping]] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class KeyList(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("prefix", "after", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: bytes
    after: bytes
    limit: int
    def __init__(self, prefix: _Optional[bytes] = ..., after: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class KeyHistory(_message.Message):
    __slots__ = ("key", "limit")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    limit: int
    def __init__(self, key: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class KeyRevision(_message.Message):
    __slots__ = ("key", "revision")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    revision: int
    def __init__(self, key: _Optional[bytes] = ..., revision: _Optional[int] = ...) -> None: ...

class ReadKeysResponse(_message.Message):
    __slots__ = ("records", "after", "last_stable_offset", "high_watermark")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    after: bytes
    last_stable_offset: int
    high_watermark: int
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., after: _Optional[bytes] = ..., last_stable_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ...) -> None: ...
