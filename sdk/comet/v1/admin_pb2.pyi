from comet.v1 import groups_pb2 as _groups_pb2
from comet.v1 import schedules_pb2 as _schedules_pb2
from comet.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "config", "replicas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    config: _types_pb2.TopicConfig
    replicas: int
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., config: _Optional[_Union[_types_pb2.TopicConfig, _Mapping]] = ..., replicas: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("page_token", "page_size", "filter")
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    page_token: str
    page_size: int
    filter: str
    def __init__(self, page_token: _Optional[str] = ..., page_size: _Optional[int] = ..., filter: _Optional[str] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "next_page_token", "total")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[_types_pb2.Topic]
    next_page_token: str
    total: int
    def __init__(self, topics: _Optional[_Iterable[_Union[_types_pb2.Topic, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total: _Optional[int] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("name", "local")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    local: bool
    def __init__(self, name: _Optional[str] = ..., local: _Optional[bool] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: _types_pb2.Topic
    partitions: _containers.RepeatedCompositeFieldContainer[_types_pb2.PartitionStatus]
    def __init__(self, topic: _Optional[_Union[_types_pb2.Topic, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[_types_pb2.PartitionStatus, _Mapping]]] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("name", "config", "unset", "dry_run", "local")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: _types_pb2.TopicConfig
    unset: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    local: bool
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[_types_pb2.TopicConfig, _Mapping]] = ..., unset: _Optional[_Iterable[str]] = ..., dry_run: _Optional[bool] = ..., local: _Optional[bool] = ...) -> None: ...

class AlterTopicResponse(_message.Message):
    __slots__ = ("topic", "before", "deletes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    topic: _types_pb2.Topic
    before: _types_pb2.Topic
    deletes: RecordsLost
    def __init__(self, topic: _Optional[_Union[_types_pb2.Topic, _Mapping]] = ..., before: _Optional[_Union[_types_pb2.Topic, _Mapping]] = ..., deletes: _Optional[_Union[RecordsLost, _Mapping]] = ...) -> None: ...

class RecordsLost(_message.Message):
    __slots__ = ("records", "bytes", "partitions")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    records: int
    bytes: int
    partitions: int
    def __init__(self, records: _Optional[int] = ..., bytes: _Optional[int] = ..., partitions: _Optional[int] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("partitions", "deletes", "groups", "groups_unknown")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    deletes: RecordsLost
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    groups_unknown: bool
    def __init__(self, partitions: _Optional[int] = ..., deletes: _Optional[_Union[RecordsLost, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ..., groups_unknown: _Optional[bool] = ...) -> None: ...

class AddPartitionsRequest(_message.Message):
    __slots__ = ("name", "total", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    total: int
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., total: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class AddPartitionsResponse(_message.Message):
    __slots__ = ("topic", "before", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: _types_pb2.Topic
    before: int
    after: int
    def __init__(self, topic: _Optional[_Union[_types_pb2.Topic, _Mapping]] = ..., before: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("name", "partition", "before_offset", "forwarded", "dry_run", "topic_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition: int
    before_offset: int
    forwarded: bool
    dry_run: bool
    topic_id: bytes
    def __init__(self, name: _Optional[str] = ..., partition: _Optional[int] = ..., before_offset: _Optional[int] = ..., forwarded: _Optional[bool] = ..., dry_run: _Optional[bool] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("log_start", "before")
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    log_start: int
    before: int
    def __init__(self, log_start: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "controller", "brokers", "topics", "partitions", "topic_defaults")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller: int
    brokers: _containers.RepeatedCompositeFieldContainer[_types_pb2.Broker]
    topics: int
    partitions: int
    topic_defaults: _types_pb2.TopicDefaults
    def __init__(self, cluster_id: _Optional[str] = ..., controller: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[_types_pb2.Broker, _Mapping]]] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ..., topic_defaults: _Optional[_Union[_types_pb2.TopicDefaults, _Mapping]] = ...) -> None: ...

class MovePartitionRequest(_message.Message):
    __slots__ = ("name", "partition", "replicas", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class MovePartitionResponse(_message.Message):
    __slots__ = ("topic", "before", "bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: _types_pb2.Topic
    before: _containers.RepeatedScalarFieldContainer[int]
    bytes: int
    def __init__(self, topic: _Optional[_Union[_types_pb2.Topic, _Mapping]] = ..., before: _Optional[_Iterable[int]] = ..., bytes: _Optional[int] = ...) -> None: ...

class ElectLeaderRequest(_message.Message):
    __slots__ = ("name", "partition", "broker", "accept_loss", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LOSS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition: int
    broker: int
    accept_loss: bool
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., partition: _Optional[int] = ..., broker: _Optional[int] = ..., accept_loss: _Optional[bool] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ElectLeaderResponse(_message.Message):
    __slots__ = ("topic", "replicas", "lost")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    topic: _types_pb2.Topic
    replicas: _containers.RepeatedCompositeFieldContainer[_types_pb2.PartitionStatus]
    lost: int
    def __init__(self, topic: _Optional[_Union[_types_pb2.Topic, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[_types_pb2.PartitionStatus, _Mapping]]] = ..., lost: _Optional[int] = ...) -> None: ...

class DrainBrokerRequest(_message.Message):
    __slots__ = ("broker", "undo", "dry_run")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    broker: int
    undo: bool
    dry_run: bool
    def __init__(self, broker: _Optional[int] = ..., undo: _Optional[bool] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class DrainBrokerResponse(_message.Message):
    __slots__ = ("leading", "draining", "handovers", "staying")
    LEADING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    HANDOVERS_FIELD_NUMBER: _ClassVar[int]
    STAYING_FIELD_NUMBER: _ClassVar[int]
    leading: int
    draining: bool
    handovers: _containers.RepeatedCompositeFieldContainer[Handover]
    staying: int
    def __init__(self, leading: _Optional[int] = ..., draining: _Optional[bool] = ..., handovers: _Optional[_Iterable[_Union[Handover, _Mapping]]] = ..., staying: _Optional[int] = ...) -> None: ...

class Handover(_message.Message):
    __slots__ = ("topic", "partition", "to")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    to: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., to: _Optional[int] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("dry_run",)
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    def __init__(self, dry_run: _Optional[bool] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("resumed", "failed")
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    resumed: int
    failed: _containers.RepeatedCompositeFieldContainer[Failure]
    def __init__(self, resumed: _Optional[int] = ..., failed: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "name", "step", "reason", "since_us", "count")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    step: str
    reason: str
    since_us: int
    count: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., step: _Optional[str] = ..., reason: _Optional[str] = ..., since_us: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class StatisticsRequest(_message.Message):
    __slots__ = ("brief", "topics", "groups")
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    brief: bool
    topics: bool
    groups: bool
    def __init__(self, brief: _Optional[bool] = ..., topics: _Optional[bool] = ..., groups: _Optional[bool] = ...) -> None: ...

class StatisticsResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("topics", "every_topic", "groups", "step_s", "since_us", "forwarded")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    EVERY_TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    every_topic: bool
    groups: _containers.RepeatedScalarFieldContainer[str]
    step_s: int
    since_us: int
    forwarded: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., every_topic: _Optional[bool] = ..., groups: _Optional[_Iterable[str]] = ..., step_s: _Optional[int] = ..., since_us: _Optional[int] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class HistoryResponse(_message.Message):
    __slots__ = ("tracks", "events")
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    tracks: _containers.RepeatedCompositeFieldContainer[HistoryTrack]
    events: _containers.RepeatedCompositeFieldContainer[ClusterEvent]
    def __init__(self, tracks: _Optional[_Iterable[_Union[HistoryTrack, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[ClusterEvent, _Mapping]]] = ...) -> None: ...

class HistoryTrack(_message.Message):
    __slots__ = ("topic", "group", "figure", "step_s", "end_us", "values")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FIGURE_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    figure: str
    step_s: int
    end_us: int
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., figure: _Optional[str] = ..., step_s: _Optional[int] = ..., end_us: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class ClusterEvent(_message.Message):
    __slots__ = ("time_us", "revision", "kind", "text", "topic", "partition", "broker")
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    revision: int
    kind: str
    text: str
    topic: str
    partition: int
    broker: int
    def __init__(self, time_us: _Optional[int] = ..., revision: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., broker: _Optional[int] = ...) -> None: ...

class InventoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InventoryResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class RecoverClusterRequest(_message.Message):
    __slots__ = ("brokers", "accept")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedScalarFieldContainer[str]
    accept: str
    def __init__(self, brokers: _Optional[_Iterable[str]] = ..., accept: _Optional[str] = ...) -> None: ...

class RecoverClusterResponse(_message.Message):
    __slots__ = ("json", "digest", "done", "silent")
    JSON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    json: str
    digest: str
    done: bool
    silent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, json: _Optional[str] = ..., digest: _Optional[str] = ..., done: _Optional[bool] = ..., silent: _Optional[_Iterable[str]] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("principal", "deny", "operations", "kind", "name", "author", "added_us")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    DENY_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    ADDED_US_FIELD_NUMBER: _ClassVar[int]
    principal: str
    deny: bool
    operations: _containers.RepeatedScalarFieldContainer[str]
    kind: str
    name: str
    author: str
    added_us: int
    def __init__(self, principal: _Optional[str] = ..., deny: _Optional[bool] = ..., operations: _Optional[_Iterable[str]] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., author: _Optional[str] = ..., added_us: _Optional[int] = ...) -> None: ...

class AddRuleRequest(_message.Message):
    __slots__ = ("rule",)
    RULE_FIELD_NUMBER: _ClassVar[int]
    rule: Rule
    def __init__(self, rule: _Optional[_Union[Rule, _Mapping]] = ...) -> None: ...

class RemoveRuleRequest(_message.Message):
    __slots__ = ("rule",)
    RULE_FIELD_NUMBER: _ClassVar[int]
    rule: Rule
    def __init__(self, rule: _Optional[_Union[Rule, _Mapping]] = ...) -> None: ...

class RuleChange(_message.Message):
    __slots__ = ("rule", "changed", "enforced")
    RULE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    rule: Rule
    changed: bool
    enforced: bool
    def __init__(self, rule: _Optional[_Union[Rule, _Mapping]] = ..., changed: _Optional[bool] = ..., enforced: _Optional[bool] = ...) -> None: ...

class ListRulesRequest(_message.Message):
    __slots__ = ("principal",)
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    principal: str
    def __init__(self, principal: _Optional[str] = ...) -> None: ...

class ListRulesResponse(_message.Message):
    __slots__ = ("rules", "enforced", "superusers")
    RULES_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    SUPERUSERS_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    enforced: bool
    superusers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., enforced: _Optional[bool] = ..., superusers: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainAccessRequest(_message.Message):
    __slots__ = ("principal", "operation", "kind", "name", "roles")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    principal: str
    operation: str
    kind: str
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, principal: _Optional[str] = ..., operation: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainAccessResponse(_message.Message):
    __slots__ = ("allowed", "why", "rule")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    why: str
    rule: Rule
    def __init__(self, allowed: _Optional[bool] = ..., why: _Optional[str] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ...) -> None: ...

class AccessNeed(_message.Message):
    __slots__ = ("operation", "kind", "name")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    operation: str
    kind: str
    name: str
    def __init__(self, operation: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class CheckAccessRequest(_message.Message):
    __slots__ = ("needs",)
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    needs: _containers.RepeatedCompositeFieldContainer[AccessNeed]
    def __init__(self, needs: _Optional[_Iterable[_Union[AccessNeed, _Mapping]]] = ...) -> None: ...

class AccessAnswer(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _types_pb2.Error
    def __init__(self, error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class CheckAccessResponse(_message.Message):
    __slots__ = ("answers", "revision")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[AccessAnswer]
    revision: int
    def __init__(self, answers: _Optional[_Iterable[_Union[AccessAnswer, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class RoleMember(_message.Message):
    __slots__ = ("role", "principal", "author", "added_us")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    ADDED_US_FIELD_NUMBER: _ClassVar[int]
    role: str
    principal: str
    author: str
    added_us: int
    def __init__(self, role: _Optional[str] = ..., principal: _Optional[str] = ..., author: _Optional[str] = ..., added_us: _Optional[int] = ...) -> None: ...

class GrantRoleRequest(_message.Message):
    __slots__ = ("role", "principal")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    role: str
    principal: str
    def __init__(self, role: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class RevokeRoleRequest(_message.Message):
    __slots__ = ("role", "principal")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    role: str
    principal: str
    def __init__(self, role: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class RoleChange(_message.Message):
    __slots__ = ("member", "changed", "enforced")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    member: RoleMember
    changed: bool
    enforced: bool
    def __init__(self, member: _Optional[_Union[RoleMember, _Mapping]] = ..., changed: _Optional[bool] = ..., enforced: _Optional[bool] = ...) -> None: ...

class ListRolesRequest(_message.Message):
    __slots__ = ("role", "principal")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    role: str
    principal: str
    def __init__(self, role: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class ListRolesResponse(_message.Message):
    __slots__ = ("members", "enforced")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[RoleMember]
    enforced: bool
    def __init__(self, members: _Optional[_Iterable[_Union[RoleMember, _Mapping]]] = ..., enforced: _Optional[bool] = ...) -> None: ...

class AccessKey(_message.Message):
    __slots__ = ("id", "principal", "author", "created_us", "expires_us", "in_file")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    IN_FILE_FIELD_NUMBER: _ClassVar[int]
    id: str
    principal: str
    author: str
    created_us: int
    expires_us: int
    in_file: bool
    def __init__(self, id: _Optional[str] = ..., principal: _Optional[str] = ..., author: _Optional[str] = ..., created_us: _Optional[int] = ..., expires_us: _Optional[int] = ..., in_file: _Optional[bool] = ...) -> None: ...

class CreateAccessKeyRequest(_message.Message):
    __slots__ = ("id", "principal", "sha256", "lifetime_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    principal: str
    sha256: bytes
    lifetime_s: int
    def __init__(self, id: _Optional[str] = ..., principal: _Optional[str] = ..., sha256: _Optional[bytes] = ..., lifetime_s: _Optional[int] = ...) -> None: ...

class ListAccessKeysRequest(_message.Message):
    __slots__ = ("principal",)
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    principal: str
    def __init__(self, principal: _Optional[str] = ...) -> None: ...

class ListAccessKeysResponse(_message.Message):
    __slots__ = ("keys", "accepted")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[AccessKey]
    accepted: bool
    def __init__(self, keys: _Optional[_Iterable[_Union[AccessKey, _Mapping]]] = ..., accepted: _Optional[bool] = ...) -> None: ...

class RevokeAccessKeyRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RevokeAccessKeyResponse(_message.Message):
    __slots__ = ("revoked", "key")
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    revoked: bool
    key: AccessKey
    def __init__(self, revoked: _Optional[bool] = ..., key: _Optional[_Union[AccessKey, _Mapping]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("principal", "bytes_in", "bytes_out", "requests", "streams", "author", "set_us")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    SET_US_FIELD_NUMBER: _ClassVar[int]
    principal: str
    bytes_in: int
    bytes_out: int
    requests: int
    streams: int
    author: str
    set_us: int
    def __init__(self, principal: _Optional[str] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., requests: _Optional[int] = ..., streams: _Optional[int] = ..., author: _Optional[str] = ..., set_us: _Optional[int] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("quota",)
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    quota: Quota
    def __init__(self, quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("principal",)
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    principal: str
    def __init__(self, principal: _Optional[str] = ...) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ...) -> None: ...

class RemoveQuotaRequest(_message.Message):
    __slots__ = ("principal",)
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    principal: str
    def __init__(self, principal: _Optional[str] = ...) -> None: ...

class RemoveQuotaResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    def __init__(self, removed: _Optional[bool] = ...) -> None: ...

class CalendarBreak(_message.Message):
    __slots__ = ("start_us", "end_us")
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    start_us: int
    end_us: int
    def __init__(self, start_us: _Optional[int] = ..., end_us: _Optional[int] = ...) -> None: ...

class CalendarSession(_message.Message):
    __slots__ = ("date", "open_us", "close_us", "breaks")
    DATE_FIELD_NUMBER: _ClassVar[int]
    OPEN_US_FIELD_NUMBER: _ClassVar[int]
    CLOSE_US_FIELD_NUMBER: _ClassVar[int]
    BREAKS_FIELD_NUMBER: _ClassVar[int]
    date: str
    open_us: int
    close_us: int
    breaks: _containers.RepeatedCompositeFieldContainer[CalendarBreak]
    def __init__(self, date: _Optional[str] = ..., open_us: _Optional[int] = ..., close_us: _Optional[int] = ..., breaks: _Optional[_Iterable[_Union[CalendarBreak, _Mapping]]] = ...) -> None: ...

class Calendar(_message.Message):
    __slots__ = ("name", "zone", "known_until", "source", "version", "author", "set_us", "sessions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_UNTIL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    SET_US_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    zone: str
    known_until: str
    source: str
    version: int
    author: str
    set_us: int
    sessions: _containers.RepeatedCompositeFieldContainer[CalendarSession]
    def __init__(self, name: _Optional[str] = ..., zone: _Optional[str] = ..., known_until: _Optional[str] = ..., source: _Optional[str] = ..., version: _Optional[int] = ..., author: _Optional[str] = ..., set_us: _Optional[int] = ..., sessions: _Optional[_Iterable[_Union[CalendarSession, _Mapping]]] = ...) -> None: ...

class CalendarInfo(_message.Message):
    __slots__ = ("name", "zone", "first", "known_until", "sessions", "source", "version", "author", "set_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    KNOWN_UNTIL_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    SET_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    zone: str
    first: str
    known_until: str
    sessions: int
    source: str
    version: int
    author: str
    set_us: int
    def __init__(self, name: _Optional[str] = ..., zone: _Optional[str] = ..., first: _Optional[str] = ..., known_until: _Optional[str] = ..., sessions: _Optional[int] = ..., source: _Optional[str] = ..., version: _Optional[int] = ..., author: _Optional[str] = ..., set_us: _Optional[int] = ...) -> None: ...

class ListCalendarsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCalendarsResponse(_message.Message):
    __slots__ = ("calendars",)
    CALENDARS_FIELD_NUMBER: _ClassVar[int]
    calendars: _containers.RepeatedCompositeFieldContainer[CalendarInfo]
    def __init__(self, calendars: _Optional[_Iterable[_Union[CalendarInfo, _Mapping]]] = ...) -> None: ...

class GetCalendarRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class PutCalendarRequest(_message.Message):
    __slots__ = ("calendar", "version", "dry_run")
    CALENDAR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    calendar: Calendar
    version: int
    dry_run: bool
    def __init__(self, calendar: _Optional[_Union[Calendar, _Mapping]] = ..., version: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class PutCalendarResponse(_message.Message):
    __slots__ = ("calendar", "created", "added", "removed", "changed")
    CALENDAR_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    calendar: CalendarInfo
    created: bool
    added: _containers.RepeatedScalarFieldContainer[str]
    removed: _containers.RepeatedScalarFieldContainer[str]
    changed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, calendar: _Optional[_Union[CalendarInfo, _Mapping]] = ..., created: _Optional[bool] = ..., added: _Optional[_Iterable[str]] = ..., removed: _Optional[_Iterable[str]] = ..., changed: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteCalendarRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class DeleteCalendarResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: _Optional[bool] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("local",)
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    local: bool
    def __init__(self, local: _Optional[bool] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("name", "kind", "state", "members", "coordinator", "generation", "topics", "assignment")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: _groups_pb2.GroupKind
    state: str
    members: int
    coordinator: int
    generation: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    assignment: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[_groups_pb2.GroupKind, str]] = ..., state: _Optional[str] = ..., members: _Optional[int] = ..., coordinator: _Optional[int] = ..., generation: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., assignment: _Optional[str] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("name", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("summary", "members", "lags", "rebalances_us")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LAGS_FIELD_NUMBER: _ClassVar[int]
    REBALANCES_US_FIELD_NUMBER: _ClassVar[int]
    summary: GroupSummary
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    lags: _containers.RepeatedCompositeFieldContainer[PartitionLag]
    rebalances_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, summary: _Optional[_Union[GroupSummary, _Mapping]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., lags: _Optional[_Iterable[_Union[PartitionLag, _Mapping]]] = ..., rebalances_us: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("id", "instance", "client", "owned", "release", "silent_ms", "session_timeout_ms", "assignment", "rack")
    ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    id: str
    instance: str
    client: str
    owned: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicPartitions]
    release: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicPartitions]
    silent_ms: int
    session_timeout_ms: int
    assignment: str
    rack: str
    def __init__(self, id: _Optional[str] = ..., instance: _Optional[str] = ..., client: _Optional[str] = ..., owned: _Optional[_Iterable[_Union[_groups_pb2.TopicPartitions, _Mapping]]] = ..., release: _Optional[_Iterable[_Union[_groups_pb2.TopicPartitions, _Mapping]]] = ..., silent_ms: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ..., assignment: _Optional[str] = ..., rack: _Optional[str] = ...) -> None: ...

class PartitionLag(_message.Message):
    __slots__ = ("topic", "partition", "member", "committed", "log_start", "end", "lag", "age_s", "drain_s", "in_flight", "redelivered", "dead_lettered", "dead_waiting", "dead_problem")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    DRAIN_S_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    DEAD_WAITING_FIELD_NUMBER: _ClassVar[int]
    DEAD_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    member: str
    committed: int
    log_start: int
    end: int
    lag: int
    age_s: float
    drain_s: float
    in_flight: int
    redelivered: int
    dead_lettered: int
    dead_waiting: int
    dead_problem: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., member: _Optional[str] = ..., committed: _Optional[int] = ..., log_start: _Optional[int] = ..., end: _Optional[int] = ..., lag: _Optional[int] = ..., age_s: _Optional[float] = ..., drain_s: _Optional[float] = ..., in_flight: _Optional[int] = ..., redelivered: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., dead_waiting: _Optional[int] = ..., dead_problem: _Optional[str] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("name", "topics", "position", "shift", "dry_run", "offsets", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    topics: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicPartitions]
    position: _types_pb2.Position
    shift: int
    dry_run: bool
    offsets: _containers.RepeatedCompositeFieldContainer[_groups_pb2.TopicOffsets]
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[_groups_pb2.TopicPartitions, _Mapping]]] = ..., position: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., shift: _Optional[int] = ..., dry_run: _Optional[bool] = ..., offsets: _Optional[_Iterable[_Union[_groups_pb2.TopicOffsets, _Mapping]]] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class ResetGroupResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ResetPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ResetPartition, _Mapping]]] = ...) -> None: ...

class ResetPartition(_message.Message):
    __slots__ = ("topic", "partition", "before", "after", "skipped", "note")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    before: int
    after: int
    skipped: int
    note: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., before: _Optional[int] = ..., after: _Optional[int] = ..., skipped: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name", "dry_run", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    dry_run: bool
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., dry_run: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("offsets", "lag")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    offsets: int
    lag: int
    def __init__(self, offsets: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class GroupLagRequest(_message.Message):
    __slots__ = ("name", "points_max", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POINTS_MAX_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    points_max: int
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., points_max: _Optional[int] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class GroupLagResponse(_message.Message):
    __slots__ = ("now", "history")
    NOW_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    now: _containers.RepeatedCompositeFieldContainer[PartitionLag]
    history: _containers.RepeatedCompositeFieldContainer[LagPoint]
    def __init__(self, now: _Optional[_Iterable[_Union[PartitionLag, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[LagPoint, _Mapping]]] = ...) -> None: ...

class LagPoint(_message.Message):
    __slots__ = ("time_us", "topic", "lag", "age_s", "committed", "end")
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    topic: str
    lag: int
    age_s: float
    committed: int
    end: int
    def __init__(self, time_us: _Optional[int] = ..., topic: _Optional[str] = ..., lag: _Optional[int] = ..., age_s: _Optional[float] = ..., committed: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...
