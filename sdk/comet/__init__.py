"""Comet: event streaming for Python teams.

    Producer, Consumer, Admin, App     asynchronous; comet.sync has the same, synchronous
    read, write_frame                  a topic as tables of Arrow, Polars and pandas, and back
    model                              marks a class as the model of a value
    Record, RecordBatch, Receipt, …    their arguments and results
    CometError and its subclasses      all errors, see comet.errors
    run                                runs a coroutine on a fast event loop

Names are imported when they are first used, so that `import comet` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comet import sync, testing
    from comet.admin.admin import Admin, TopicPage
    from comet.admin.history import ClusterEvent, History, HistoryTrack
    from comet.admin.recovery import ClusterRecovery, PartitionRecovery, RecoveryChoice
    from comet.app import App
    from comet.consumer.consumer import Consumer
    from comet.consumer.range_reader import Reader
    from comet.consumer.ranges import Fetched, RangeReader
    from comet.consumer.record import NewRecord, Record, RecordBatch
    from comet.consumer.time_merge import MergedReader, MergedRecord
    from comet.errors import (
        BrokerNotFound,
        Closed,
        CometError,
        CoordinatorLoading,
        CorruptBatch,
        CorruptRecords,
        DataFolderTaken,
        DataLoss,
        DiskFull,
        Draining,
        GroupError,
        GroupNotEmpty,
        GroupNotFound,
        Internal,
        InvalidArgument,
        KeyReused,
        LeadershipLost,
        LimitExceeded,
        LockExpired,
        LogFailed,
        MalformedFrame,
        MemberFenced,
        MemberUnknown,
        NotCoordinator,
        NotEnoughReplicas,
        NotLeader,
        OffsetOutOfRange,
        PartitionNotFound,
        ProducerError,
        ProducerFenced,
        RecordTooLarge,
        SequenceGap,
        SequenceTooOld,
        SerdeError,
        StaleGeneration,
        Timeout,
        TopicExists,
        TopicNotFound,
        TransactionAborted,
        TransactionError,
        TransactionNotOpen,
        Truncated,
        Unavailable,
        UnknownProducer,
        UnsupportedVersion,
    )
    from comet.event_loop import run
    from comet.groups.committed_offsets import CommitResult, CommittedOffset
    from comet.groups.group_consumer import GroupConsumer
    from comet.producer.delivery import BulkDelivery, Delivery, FailedRange
    from comet.producer.producer import Producer
    from comet.producer.transaction import Transaction, TransactionalProducer
    from comet.serde import model
    from comet.share.share_client import AcquiredRecord, ShareClient
    from comet.share.share_consumer import ShareConsumer, ShareRecord
    from comet.tables.scan import Scan, read
    from comet.tables.write import write_frame
    from comet.types import (
        Acks,
        AtOffset,
        AtTime,
        BrokerInfo,
        ClusterInfo,
        Consistency,
        Earliest,
        Flush,
        Gap,
        GroupInfo,
        GroupMember,
        GroupSummary,
        LagPoint,
        Latest,
        PartitionInfo,
        PartitionLag,
        PartitionStatus,
        Receipt,
        ReceiptRange,
        ResetPartition,
        SettingSource,
        TopicConfig,
        TopicDefaults,
        TopicInfo,
        TopicPartition,
    )
    from comet.wire.replica_conflict import ReplicaConflict

__version__ = "0.1.0"

__all__ = [
    "Acks",
    "AcquiredRecord",
    "Admin",
    "App",
    "AtOffset",
    "AtTime",
    "BrokerInfo",
    "BrokerNotFound",
    "BulkDelivery",
    "Closed",
    "ClusterEvent",
    "ClusterInfo",
    "ClusterRecovery",
    "CometError",
    "CommitResult",
    "CommittedOffset",
    "Consistency",
    "Consumer",
    "CoordinatorLoading",
    "CorruptBatch",
    "CorruptRecords",
    "DataFolderTaken",
    "DataLoss",
    "Delivery",
    "DiskFull",
    "Draining",
    "Earliest",
    "FailedRange",
    "Fetched",
    "Flush",
    "Gap",
    "GroupConsumer",
    "GroupError",
    "GroupInfo",
    "GroupMember",
    "GroupNotEmpty",
    "GroupNotFound",
    "GroupSummary",
    "History",
    "HistoryTrack",
    "Internal",
    "InvalidArgument",
    "KeyReused",
    "LagPoint",
    "Latest",
    "LeadershipLost",
    "LimitExceeded",
    "LockExpired",
    "LogFailed",
    "MalformedFrame",
    "MemberFenced",
    "MemberUnknown",
    "MergedReader",
    "MergedRecord",
    "NewRecord",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotLeader",
    "OffsetOutOfRange",
    "PartitionInfo",
    "PartitionLag",
    "PartitionNotFound",
    "PartitionRecovery",
    "PartitionStatus",
    "Producer",
    "ProducerError",
    "ProducerFenced",
    "RangeReader",
    "Reader",
    "Receipt",
    "ReceiptRange",
    "Record",
    "RecordBatch",
    "RecordTooLarge",
    "RecoveryChoice",
    "ReplicaConflict",
    "ResetPartition",
    "Scan",
    "SequenceGap",
    "SequenceTooOld",
    "SerdeError",
    "SettingSource",
    "ShareClient",
    "ShareConsumer",
    "ShareRecord",
    "StaleGeneration",
    "Timeout",
    "TopicConfig",
    "TopicDefaults",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicPage",
    "TopicPartition",
    "Transaction",
    "TransactionAborted",
    "TransactionError",
    "TransactionNotOpen",
    "TransactionalProducer",
    "Truncated",
    "Unavailable",
    "UnknownProducer",
    "UnsupportedVersion",
    "model",
    "read",
    "run",
    "sync",
    "testing",
    "write_frame",
]

_OWN = {
    "Admin": "comet.admin.admin",
    "App": "comet.app",
    "BulkDelivery": "comet.producer.delivery",
    "ClusterEvent": "comet.admin.history",
    "ClusterRecovery": "comet.admin.recovery",
    "CommitResult": "comet.groups.committed_offsets",
    "Consumer": "comet.consumer.consumer",
    "Delivery": "comet.producer.delivery",
    "FailedRange": "comet.producer.delivery",
    "Fetched": "comet.consumer.ranges",
    "GroupConsumer": "comet.groups.group_consumer",
    "CommittedOffset": "comet.groups.committed_offsets",
    "History": "comet.admin.history",
    "HistoryTrack": "comet.admin.history",
    "AcquiredRecord": "comet.share.share_client",
    "ShareClient": "comet.share.share_client",
    "MergedReader": "comet.consumer.time_merge",
    "MergedRecord": "comet.consumer.time_merge",
    "NewRecord": "comet.consumer.record",
    "PartitionRecovery": "comet.admin.recovery",
    "Producer": "comet.producer.producer",
    "RangeReader": "comet.consumer.ranges",
    "Reader": "comet.consumer.range_reader",
    "Record": "comet.consumer.record",
    "RecordBatch": "comet.consumer.record",
    "RecoveryChoice": "comet.admin.recovery",
    "Scan": "comet.tables.scan",
    "ShareConsumer": "comet.share.share_consumer",
    "ShareRecord": "comet.share.share_consumer",
    "TopicPage": "comet.admin.admin",
    "Transaction": "comet.producer.transaction",
    "TransactionalProducer": "comet.producer.transaction",
    "model": "comet.serde",
    "read": "comet.tables.scan",
    "run": "comet.event_loop",
    "ReplicaConflict": "comet.wire.replica_conflict",
    "write_frame": "comet.tables.write",
}
_TYPES = {
    "Acks", "AtOffset", "AtTime", "BrokerInfo", "ClusterInfo", "Consistency", "Earliest", "Flush", "Gap", "GroupInfo",
    "GroupMember", "GroupSummary", "LagPoint", "Latest", "PartitionInfo", "PartitionLag", "PartitionStatus",
    "Receipt", "ReceiptRange", "ResetPartition", "SettingSource", "TopicConfig", "TopicDefaults", "TopicInfo",
    "TopicPartition",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in {"sync", "testing"}:
        return import_module(f"comet.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'comet' has no attribute {name!r}")
    module = _OWN.get(name) or ("comet.types" if name in _TYPES else "comet.errors")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
