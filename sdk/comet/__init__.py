"""Comet: event streaming for Python teams.

    Producer, Consumer, Admin, App     asynchronous; comet.sync has the same, synchronous
    read, write_frame                  a topic as tables of Arrow, Polars and pandas, and back
    replay                             a CSV or Parquet file as records, at a pace
    Keyring                            the keys of end-to-end encryption
    model                              marks a class as the model of a value
    ConsumerOptions, GroupOptions, …   the options of consumers and handlers, as objects
    Record, RecordBatch, Receipt, …    their arguments and results
    CometError and its subclasses      all errors, see comet.errors
    run                                runs a coroutine on a fast event loop

Names are imported when they are first used, so that `import comet` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from comet.wire.version import VERSION

if TYPE_CHECKING:
    from comet import sync, testing, tracing
    from comet.admin.access import AccessAdmin
    from comet.admin.access_keys import AccessKey, AccessKeyList, AccessKeyRevocation, NewAccessKey
    from comet.admin.admin import Admin
    from comet.admin.calendars import CalendarAdmin, CalendarDeletion, CalendarInfo, CalendarList, CalendarPut
    from comet.admin.history import ClusterEvent, History, HistoryTrack
    from comet.admin.quotas import Quota, QuotaList, QuotaRemoval
    from comet.admin.recovery import ClusterRecovery, PartitionRecovery, RecoveryChoice
    from comet.admin.results import (
        BrokerDrain,
        GroupDeletion,
        GroupLag,
        Handover,
        LeaderElection,
        PartitionMove,
        PartitionsAdded,
        RecordDeletion,
        Resumed,
        TopicAlteration,
        TopicDeletion,
        TopicPage,
    )
    from comet.admin.rules import (
        AccessCheck,
        AccessDecision,
        ResourceKind,
        RoleChange,
        RoleList,
        RoleMember,
        Rule,
        RuleChange,
        RuleList,
        RuleOperation,
    )
    from comet.admin.schedules import (
        ScheduleAdmin,
        ScheduleChange,
        ScheduleDetails,
        ScheduleInfo,
        ScheduleList,
        SchedulePut,
    )
    from comet.app import App
    from comet.client.bootstrap import Bootstrap
    from comet.client.new_topic import NewTopic
    from comet.consumer.consumer import Consumer
    from comet.consumer.options import ConsumerOptions
    from comet.consumer.range_reader import Reader
    from comet.consumer.ranges import Fetched, RangeReader
    from comet.consumer.time_merge import MergedReader, MergedRecord
    from comet.encryption.keyring import Keyring
    from comet.encryption.keys import KeyProvider
    from comet.entities import (
        BrokerDetails,
        BrokerFailure,
        BrokerInfo,
        ClusterInfo,
        OffsetRange,
        PartitionDetails,
        PartitionInfo,
        ReplicaConflict,
        ReplicaInfo,
        TopicDetails,
        TopicInfo,
        TopicTotals,
    )
    from comet.errors import (
        BrokerNotFound,
        CalendarChanged,
        CalendarNotFound,
        Closed,
        CometError,
        CoordinatorLoading,
        CorruptBatch,
        CorruptRecords,
        CredentialsRefused,
        DataFolderTaken,
        DataLoss,
        DecryptionError,
        DiskFull,
        Draining,
        Forbidden,
        GroupError,
        GroupNotEmpty,
        GroupNotFound,
        Internal,
        InvalidArgument,
        InvalidSchedule,
        KeyNotFound,
        KeyReused,
        LeadershipLost,
        LimitExceeded,
        LockExpired,
        LogFailed,
        MalformedFilter,
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
        RevisionMismatch,
        ScheduleNotFound,
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
    from comet.groups.options import GroupOptions
    from comet.handlers.app_test import AppTest, DeadLetter
    from comet.handlers.dependencies import Depends
    from comet.handlers.message import CallNext, Message
    from comet.handlers.options import HandlerOptions
    from comet.handlers.router import Router
    from comet.key_values.entry import KVEntry
    from comet.key_values.kv import KV
    from comet.key_values.watch import KVWatch
    from comet.producer.delivery import BulkDelivery, Delivery, FailedRange, ScheduledDelivery
    from comet.producer.producer import Producer
    from comet.producer.transaction import Transaction, TransactionalProducer
    from comet.schedules.calendars import Calendar, CalendarSession, SessionBreak
    from comet.schedules.preview import ScheduledTime, SchedulePreview
    from comet.security.client_credentials import ClientCredentials
    from comet.security.token_source import TokenProvider
    from comet.serde import model
    from comet.settings.topic import Consistency, Flush, SettingSource, TopicConfig, TopicDefaults
    from comet.share.options import ShareOptions
    from comet.share.share_client import AcquiredRecord, ShareClient
    from comet.share.share_consumer import ShareConsumer, ShareRecord
    from comet.sources.replay import Replay, ReplayedRow, replay
    from comet.tables.scan import Scan, read
    from comet.tables.write import write_frame
    from comet.tracing.options import Tracing
    from comet.types import (
        Acks,
        AtOffset,
        AtTime,
        Earliest,
        Gap,
        GroupInfo,
        GroupMember,
        GroupSummary,
        LagPoint,
        Latest,
        PartitionLag,
        Receipt,
        ReceiptRange,
        ResetPartition,
        ScheduledReceipt,
        TopicPartition,
    )
    from comet.values.record import NewRecord, Record, RecordBatch

__version__ = VERSION

__all__ = [
    "KV",
    "AccessAdmin",
    "AccessCheck",
    "AccessDecision",
    "AccessKey",
    "AccessKeyList",
    "AccessKeyRevocation",
    "Acks",
    "AcquiredRecord",
    "Admin",
    "App",
    "AppTest",
    "AtOffset",
    "AtTime",
    "Bootstrap",
    "BrokerDetails",
    "BrokerDrain",
    "BrokerFailure",
    "BrokerInfo",
    "BrokerNotFound",
    "BulkDelivery",
    "Calendar",
    "CalendarAdmin",
    "CalendarChanged",
    "CalendarDeletion",
    "CalendarInfo",
    "CalendarList",
    "CalendarNotFound",
    "CalendarPut",
    "CalendarSession",
    "CallNext",
    "ClientCredentials",
    "Closed",
    "ClusterEvent",
    "ClusterInfo",
    "ClusterRecovery",
    "CometError",
    "CommitResult",
    "CommittedOffset",
    "Consistency",
    "Consumer",
    "ConsumerOptions",
    "CoordinatorLoading",
    "CorruptBatch",
    "CorruptRecords",
    "CredentialsRefused",
    "DataFolderTaken",
    "DataLoss",
    "DeadLetter",
    "DecryptionError",
    "Delivery",
    "Depends",
    "DiskFull",
    "Draining",
    "Earliest",
    "FailedRange",
    "Fetched",
    "Flush",
    "Forbidden",
    "Gap",
    "GroupConsumer",
    "GroupDeletion",
    "GroupError",
    "GroupInfo",
    "GroupLag",
    "GroupMember",
    "GroupNotEmpty",
    "GroupNotFound",
    "GroupOptions",
    "GroupSummary",
    "HandlerOptions",
    "Handover",
    "History",
    "HistoryTrack",
    "Internal",
    "InvalidArgument",
    "InvalidSchedule",
    "KVEntry",
    "KVWatch",
    "KeyNotFound",
    "KeyProvider",
    "KeyReused",
    "Keyring",
    "LagPoint",
    "Latest",
    "LeaderElection",
    "LeadershipLost",
    "LimitExceeded",
    "LockExpired",
    "LogFailed",
    "MalformedFilter",
    "MalformedFrame",
    "MemberFenced",
    "MemberUnknown",
    "MergedReader",
    "MergedRecord",
    "Message",
    "NewAccessKey",
    "NewRecord",
    "NewTopic",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotLeader",
    "OffsetOutOfRange",
    "OffsetRange",
    "PartitionDetails",
    "PartitionInfo",
    "PartitionLag",
    "PartitionMove",
    "PartitionNotFound",
    "PartitionRecovery",
    "PartitionsAdded",
    "Producer",
    "ProducerError",
    "ProducerFenced",
    "Quota",
    "QuotaList",
    "QuotaRemoval",
    "RangeReader",
    "Reader",
    "Receipt",
    "ReceiptRange",
    "Record",
    "RecordBatch",
    "RecordDeletion",
    "RecordTooLarge",
    "RecoveryChoice",
    "Replay",
    "ReplayedRow",
    "ReplicaConflict",
    "ReplicaInfo",
    "ResetPartition",
    "ResourceKind",
    "Resumed",
    "RevisionMismatch",
    "RoleChange",
    "RoleList",
    "RoleMember",
    "Router",
    "Rule",
    "RuleChange",
    "RuleList",
    "RuleOperation",
    "Scan",
    "ScheduleAdmin",
    "ScheduleChange",
    "ScheduleDetails",
    "ScheduleInfo",
    "ScheduleList",
    "ScheduleNotFound",
    "SchedulePreview",
    "SchedulePut",
    "ScheduledDelivery",
    "ScheduledReceipt",
    "ScheduledTime",
    "SequenceGap",
    "SequenceTooOld",
    "SerdeError",
    "SessionBreak",
    "SettingSource",
    "ShareClient",
    "ShareConsumer",
    "ShareOptions",
    "ShareRecord",
    "StaleGeneration",
    "Timeout",
    "TokenProvider",
    "TopicAlteration",
    "TopicConfig",
    "TopicDefaults",
    "TopicDeletion",
    "TopicDetails",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicPage",
    "TopicPartition",
    "TopicTotals",
    "Tracing",
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
    "replay",
    "run",
    "sync",
    "testing",
    "tracing",
    "write_frame",
]

_OWN = {
    "CallNext": "comet.handlers.message",
    "Router": "comet.handlers.router",
    "Message": "comet.handlers.message",
    "Depends": "comet.handlers.dependencies",
    "DeadLetter": "comet.handlers.app_test",
    "AppTest": "comet.handlers.app_test",
    "AcquiredRecord": "comet.share.share_client",
    "Admin": "comet.admin.admin",
    "App": "comet.app",
    "Bootstrap": "comet.client.bootstrap",
    "BrokerDrain": "comet.admin.results",
    "BulkDelivery": "comet.producer.delivery",
    "ScheduledDelivery": "comet.producer.delivery",
    "Calendar": "comet.schedules.calendars",
    "CalendarAdmin": "comet.admin.calendars",
    "CalendarDeletion": "comet.admin.calendars",
    "CalendarInfo": "comet.admin.calendars",
    "CalendarList": "comet.admin.calendars",
    "CalendarPut": "comet.admin.calendars",
    "CalendarSession": "comet.schedules.calendars",
    "ScheduleAdmin": "comet.admin.schedules",
    "ScheduleChange": "comet.admin.schedules",
    "ScheduleDetails": "comet.admin.schedules",
    "ScheduleInfo": "comet.admin.schedules",
    "ScheduleList": "comet.admin.schedules",
    "SchedulePut": "comet.admin.schedules",
    "SchedulePreview": "comet.schedules.preview",
    "ScheduledTime": "comet.schedules.preview",
    "SessionBreak": "comet.schedules.calendars",
    "ClientCredentials": "comet.security.client_credentials",
    "ClusterEvent": "comet.admin.history",
    "ClusterRecovery": "comet.admin.recovery",
    "CommitResult": "comet.groups.committed_offsets",
    "CommittedOffset": "comet.groups.committed_offsets",
    "Consistency": "comet.settings.topic",
    "Consumer": "comet.consumer.consumer",
    "ConsumerOptions": "comet.consumer.options",
    "Delivery": "comet.producer.delivery",
    "FailedRange": "comet.producer.delivery",
    "Flush": "comet.settings.topic",
    "Fetched": "comet.consumer.ranges",
    "GroupConsumer": "comet.groups.group_consumer",
    "GroupDeletion": "comet.admin.results",
    "GroupLag": "comet.admin.results",
    "Handover": "comet.admin.results",
    "KeyProvider": "comet.encryption.keys",
    "Keyring": "comet.encryption.keyring",
    "LeaderElection": "comet.admin.results",
    "PartitionMove": "comet.admin.results",
    "GroupOptions": "comet.groups.options",
    "HandlerOptions": "comet.handlers.options",
    "History": "comet.admin.history",
    "HistoryTrack": "comet.admin.history",
    "SettingSource": "comet.settings.topic",
    "ShareClient": "comet.share.share_client",
    "MergedReader": "comet.consumer.time_merge",
    "MergedRecord": "comet.consumer.time_merge",
    "NewRecord": "comet.values.record",
    "NewTopic": "comet.client.new_topic",
    "PartitionRecovery": "comet.admin.recovery",
    "PartitionsAdded": "comet.admin.results",
    "RoleChange": "comet.admin.rules",
    "RoleList": "comet.admin.rules",
    "RoleMember": "comet.admin.rules",
    "RuleOperation": "comet.admin.rules",
    "RuleList": "comet.admin.rules",
    "RuleChange": "comet.admin.rules",
    "Rule": "comet.admin.rules",
    "ResourceKind": "comet.admin.rules",
    "AccessCheck": "comet.admin.rules",
    "AccessDecision": "comet.admin.rules",
    "AccessAdmin": "comet.admin.access",
    "AccessKey": "comet.admin.access_keys",
    "AccessKeyList": "comet.admin.access_keys",
    "AccessKeyRevocation": "comet.admin.access_keys",
    "NewAccessKey": "comet.admin.access_keys",
    "Quota": "comet.admin.quotas",
    "QuotaList": "comet.admin.quotas",
    "QuotaRemoval": "comet.admin.quotas",
    "KV": "comet.key_values.kv",
    "KVEntry": "comet.key_values.entry",
    "KVWatch": "comet.key_values.watch",
    "Producer": "comet.producer.producer",
    "RangeReader": "comet.consumer.ranges",
    "Reader": "comet.consumer.range_reader",
    "RecordDeletion": "comet.admin.results",
    "Resumed": "comet.admin.results",
    "Record": "comet.values.record",
    "RecordBatch": "comet.values.record",
    "RecoveryChoice": "comet.admin.recovery",
    "Replay": "comet.sources.replay",
    "ReplayedRow": "comet.sources.replay",
    "Scan": "comet.tables.scan",
    "ShareConsumer": "comet.share.share_consumer",
    "ShareOptions": "comet.share.options",
    "ShareRecord": "comet.share.share_consumer",
    "TokenProvider": "comet.security.token_source",
    "TopicAlteration": "comet.admin.results",
    "Tracing": "comet.tracing.options",
    "TopicConfig": "comet.settings.topic",
    "TopicDefaults": "comet.settings.topic",
    "TopicDeletion": "comet.admin.results",
    "TopicPage": "comet.admin.results",
    "Transaction": "comet.producer.transaction",
    "TransactionalProducer": "comet.producer.transaction",
    "model": "comet.serde",
    "read": "comet.tables.scan",
    "replay": "comet.sources.replay",
    "run": "comet.event_loop",
    "write_frame": "comet.tables.write",
}
_ENTITIES = {
    "BrokerDetails", "BrokerFailure", "BrokerInfo", "ClusterInfo", "OffsetRange", "PartitionDetails", "PartitionInfo",
    "ReplicaConflict", "ReplicaInfo", "TopicDetails", "TopicInfo", "TopicTotals",
}  # fmt: skip
_TYPES = {
    "Acks", "AtOffset", "AtTime", "Earliest", "Gap", "GroupInfo", "GroupMember", "GroupSummary", "LagPoint", "Latest",
    "PartitionLag", "Receipt", "ReceiptRange", "ResetPartition", "ScheduledReceipt", "TopicPartition",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in {"sync", "testing", "tracing"}:
        return import_module(f"comet.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'comet' has no attribute {name!r}")
    if name in _ENTITIES:
        module = "comet.entities"
    else:
        module = _OWN.get(name) or ("comet.types" if name in _TYPES else "comet.errors")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
