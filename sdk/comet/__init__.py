"""Comet: event streaming for Python teams.

    Producer, Consumer, Admin, App     asynchronous; comet.sync has the same, synchronous
    read, write_frame                  a topic as tables of Arrow, Polars and pandas, and back
    event                              marks a class as an event type
    Record, RecordBatch, Receipt, …    what they give and take
    CometError and its children        everything that can go wrong, see comet.errors
    run                                runs a coroutine on a fast event loop

Names are imported when they are first used, so that `import comet` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comet import sync, testing
    from comet._admin import Admin, TopicPage
    from comet._conflict import ReplicaConflict
    from comet._consumer import Consumer
    from comet._delivery import BulkDelivery, Delivery, FailedRange
    from comet._group_positions import CommitPartition, GroupPosition
    from comet._groups import GroupConsumer
    from comet._history import ClusterEvent, History, HistoryTrack
    from comet._leasing import LeasedRecord, Leases
    from comet._producer import Producer
    from comet._reader import Fetched, Reader
    from comet._record import NewRecord, Record, RecordBatch
    from comet._recovery import ClusterRecovery, PartitionRecovery, RecoveryChoice
    from comet._run import run
    from comet._scan import Scan, read
    from comet._shared import SharedConsumer, SharedRecord
    from comet._transaction import Transaction
    from comet._transactions import TransactionalProducer
    from comet._write_frame import write_frame
    from comet.app import App
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
        LeaseExpired,
        LimitExceeded,
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
    from comet.serde import event
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
        TopicConfig,
        TopicInfo,
        TopicPartition,
    )

__version__ = "0.1.0"

__all__ = [
    "Acks",
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
    "CommitPartition",
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
    "GroupPosition",
    "GroupSummary",
    "History",
    "HistoryTrack",
    "Internal",
    "InvalidArgument",
    "KeyReused",
    "LagPoint",
    "Latest",
    "LeadershipLost",
    "LeaseExpired",
    "LeasedRecord",
    "Leases",
    "LimitExceeded",
    "LogFailed",
    "MalformedFrame",
    "MemberFenced",
    "MemberUnknown",
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
    "SharedConsumer",
    "SharedRecord",
    "StaleGeneration",
    "Timeout",
    "TopicConfig",
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
    "event",
    "read",
    "run",
    "sync",
    "testing",
    "write_frame",
]

_OWN = {
    "Admin": "comet._admin",
    "App": "comet.app",
    "BulkDelivery": "comet._delivery",
    "ClusterEvent": "comet._history",
    "ClusterRecovery": "comet._recovery",
    "CommitPartition": "comet._group_positions",
    "Consumer": "comet._consumer",
    "Delivery": "comet._delivery",
    "FailedRange": "comet._delivery",
    "Fetched": "comet._reader",
    "GroupConsumer": "comet._groups",
    "GroupPosition": "comet._group_positions",
    "History": "comet._history",
    "HistoryTrack": "comet._history",
    "LeasedRecord": "comet._leasing",
    "Leases": "comet._leasing",
    "NewRecord": "comet._record",
    "PartitionRecovery": "comet._recovery",
    "Producer": "comet._producer",
    "Reader": "comet._reader",
    "Record": "comet._record",
    "RecordBatch": "comet._record",
    "RecoveryChoice": "comet._recovery",
    "Scan": "comet._scan",
    "SharedConsumer": "comet._shared",
    "SharedRecord": "comet._shared",
    "TopicPage": "comet._admin",
    "Transaction": "comet._transaction",
    "TransactionalProducer": "comet._transactions",
    "event": "comet.serde",
    "read": "comet._scan",
    "run": "comet._run",
    "ReplicaConflict": "comet._conflict",
    "write_frame": "comet._write_frame",
}
_TYPES = {
    "Acks", "AtOffset", "AtTime", "BrokerInfo", "ClusterInfo", "Consistency", "Earliest", "Flush", "Gap", "GroupInfo",
    "GroupMember", "GroupSummary", "LagPoint", "Latest", "PartitionInfo", "PartitionLag", "PartitionStatus",
    "Receipt", "ReceiptRange", "ResetPartition", "TopicConfig", "TopicInfo", "TopicPartition",
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
