"""Facts about a cluster at one moment, the input of views. Immutable.

Unknown is None, never 0: a broker that does not answer has no rate. Rates are per second over the last WINDOW_S.
Values that one broker has are those of the SDK; those gathered from several have a class here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from comet.entities import BrokerFailure, PartitionInfo
from comet_web.facts_analytics import NO_ANALYTICS, Analytics

WINDOW_S: Final = 10  # of rates


@dataclass(frozen=True, slots=True)
class Track:
    """A figure over time, oldest first, one value every `step_s`; None: unknown. The last step ends at `end_us`."""

    step_s: int
    end_us: int
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Broker:
    """A known broker. It gives its figures itself, another one may give the rest: it may be silent, or gone."""

    id: int
    address: str = ""
    rack: str = ""
    up: bool = False  # it answers
    controller: bool = False
    draining: bool = False
    insecure: bool = False  # it may answer strangers beyond loopback
    certificates: Mapping[str, int] = field(default_factory=dict)  # by listener, when its certificate expires, in µs
    version: str = ""
    started_us: int | None = None
    leading: int | None = None  # partitions
    replicas: int | None = None
    sessions: int | None = None  # streams of clients
    in_rate: float | None = None  # records
    in_bytes_rate: float | None = None
    out_rate: float | None = None
    out_bytes_rate: float | None = None
    errors_rate: float | None = None
    ack_p99_ms: float | None = None
    disk_used: int | None = None  # bytes of its logs
    disk_free: int | None = None
    cpu: float | None = None  # of one core
    memory_bytes: int | None = None
    problems: tuple[str, ...] = ()  # as it reports them
    failed: tuple[BrokerFailure, ...] = ()  # stopped ones first


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Its figures are sums over its leaders, some of which may be silent. Those of its metadata are counted
    once for each change: a page of all topics shows them every second."""

    name: str
    internal: bool
    partitions: int
    replicas: int
    in_sync: int  # of the partition that has the fewest
    under_replicated: int  # partitions
    offline: int  # partitions without a leader
    retention: Mapping[str, int]  # unit (ms, bytes, records) -> the limit beyond which records are deleted
    records: int | None = None
    bytes: int | None = None
    in_rate: float | None = None
    in_bytes_rate: float | None = None
    out_rate: float | None = None
    last_us: int | None = None  # when the last record was written
    groups: tuple[str, ...] = ()
    lag_max: int | None = None  # of the groups that read it; None: no group, or unknown
    trend: Track | None = None  # records in per second, 15 minutes
    conflicts: int = 0  # partitions with a replica in conflict


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    kind: str  # "consumer", "share"
    state: str  # "empty", "stable", "rebalancing"
    members: int
    topics: tuple[str, ...]
    coordinator: int
    lag: int | None = None  # records, all topics
    lags: Mapping[str, int] = field(default_factory=dict)  # by topic
    age_s: float | None = None  # of the oldest uncommitted record
    drain_s: float | None = None  # catch-up time at the current rate; None: see `growing`
    growing: bool | None = None
    last_commit_us: int | None = None
    trend: Track | None = None  # lag, 15 minutes


@dataclass(frozen=True, slots=True)
class Event:
    """A cluster event: an election, a restart, a topic created, changed or deleted."""

    time_us: int
    kind: str
    text: str
    topic: str = ""
    partition: int | None = None
    broker: int | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The whole cluster, as of `time_us`: from the answers of all its brokers, also while none answers."""

    time_us: int
    cluster_id: str = ""
    reachable: bool = True  # a broker answered; else the last known state
    reason: str = ""  # why no broker answered
    controller: int | None = None
    brokers: tuple[Broker, ...] = ()  # by id; with those that are known but gone
    topics: Mapping[str, Topic] = field(default_factory=dict)  # by name
    groups: Mapping[str, Group] = field(default_factory=dict)
    events: tuple[Event, ...] = ()  # newest first
    keys: tuple[IssuedKey, ...] = ()  # access keys, for admins
    # Sums of all brokers over the requested range, by the figure names of `comet.HistoryTrack`.
    tracks: Mapping[str, Track] = field(default_factory=dict)


RANGES_S: Final[Mapping[str, int]] = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400}


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str
    default: str
    source: str  # "topic", "cluster", "built-in"; of a broker or gateway "default", "file", …
    about: str
    unit: str = ""  # "ms", "bytes", …


@dataclass(frozen=True, slots=True)
class TopicDetail:
    cluster: Cluster
    topic: Topic
    partitions: tuple[PartitionInfo, ...]
    settings: tuple[Setting, ...]
    tracks: Mapping[str, Track] = field(default_factory=dict)
    compacted: bool = False  # by key


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance: str
    client: str
    owned: Mapping[str, tuple[int, ...]]
    silent_ms: int
    session_timeout_ms: int
    assignment: str = ""  # the strategy that it asks for
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group in one partition."""

    topic: str
    partition: int
    member: str
    committed: int | None
    log_start: int
    end: int
    lag: int
    age_s: float
    drain_s: float | None
    in_flight: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    dead_waiting: int = 0
    dead_problem: str = ""


@dataclass(frozen=True, slots=True)
class TopicConsumers:
    """A topic, with the lag of one of its groups by partition."""

    detail: TopicDetail
    group: str = ""  # of `lags`; empty: none selected
    lags: tuple[Lag, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDetail:
    cluster: Cluster
    group: Group
    members: tuple[Member, ...]
    lags: tuple[Lag, ...]
    tracks: Mapping[str, Track] = field(default_factory=dict)  # lag by topic
    rebalances_us: tuple[int, ...] = ()
    reset_allowed: bool = False  # no active members
    assignment: str = ""  # the strategy of a consumer group


@dataclass(frozen=True, slots=True)
class BrokerDetail:
    cluster: Cluster
    broker: Broker
    tracks: Mapping[str, Track] = field(default_factory=dict)
    sessions: tuple[Mapping[str, object], ...] = ()  # of `statistics()`
    logs: tuple[Mapping[str, object], ...] = ()  # of `statistics()["partitions"]`
    settings: tuple[Setting, ...] = ()


# ---- quotes

STEPS_S: Final[Mapping[str, int]] = {"1s": 1, "1m": 60, "5m": 300, "15m": 900}  # of candles


@dataclass(frozen=True, slots=True)
class Quote:
    """The latest quote of one symbol. Prices as they were written; None: no price."""

    symbol: str
    last: float | None
    bid: float | None
    ask: float | None
    volume: float | None  # traded since `Quotes.since_us`
    first: float | None  # the first price since then, the base of changes; None while history is loading
    time_us: int  # of the quote
    heard_us: int  # when it arrived
    records: int
    trend: Sequence[float | None] = ()  # of the price, 15 minutes
    expires_us: int = 0  # from then on it is no current quote; 0: never


class TapeTrade(NamedTuple):
    """A trade of one symbol, as a quote told of it."""

    time_us: int
    price: float
    size: float
    side: str  # of the aggressor: "buy", "sell", or empty
    partition: int
    offset: int
    outlier: bool  # its price is in no figure


@dataclass(frozen=True, slots=True)
class Candles:
    """Candles of one symbol, oldest first; each list has one value per step, None without quotes. `forming` is the
    current step: open, high, low, close, volume, spread."""

    step_s: int
    end_us: int  # of the last whole step
    open: Sequence[float | None]
    high: Sequence[float | None]
    low: Sequence[float | None]
    close: Sequence[float | None]
    volume: Sequence[float | None]
    spread: Sequence[float | None]
    forming: tuple[float, float, float, float, float, float | None] | None = None


@dataclass(frozen=True, slots=True)
class Market:
    open: bool
    since_us: int


@dataclass(frozen=True, slots=True)
class Opening:
    """The schedule that opens a closed market; None: there is none, or `problem` says why it is not known."""

    schedule: Schedule | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Quotes:
    """A topic of quotes and its state at the gateway."""

    time_us: int
    topic: str
    state: str  # "absent": no such topic; "filling", "live"; "failed": cannot be read
    reason: str = ""
    quotes: Mapping[str, Quote] = field(default_factory=dict)  # by symbol
    symbol: str = ""  # of the candles
    candles: Candles | None = None
    tape: Sequence[TapeTrade] = ()  # of that symbol, newest first
    others: Sequence[tuple[str, Candles]] = ()  # of symbols in charts beside it
    partition: int | None = None  # of the latest quote of that symbol; None with an offset: of `latest_topic`
    offset: int | None = None
    latest_topic: str = ""  # the topic whose keys have the latest quotes; empty: they are the newest records
    latest_failed: str = ""  # why that topic cannot be read now
    market: Market | None = None  # None: unknown, or no topic tells it
    market_failed: str = ""  # why that topic cannot be read now
    opening: Opening | None = None  # of a closed market
    since_us: int | None = None  # start of the known history
    bounded: str = ""  # why it reaches no further back
    records: int = 0
    rate: float | None = None  # records a second
    unread: int = 0  # records that are not quotes
    unread_reason: str = ""
    outliers: int = 0  # prices far from their quotes, in no figure
    symbols_left_out: int = 0  # beyond the limit
    lost: int = 0  # records skipped because the gateway was too slow
    bytes: int = 0  # of memory
    delay_ms: float | None = None  # of the latest quote, from its own time to its arrival
    last_us: int | None = None  # arrival of the latest quote
    topics: tuple[str, ...] = ()  # whose names start with this topic's name and a dot: results of jobs
    analytics: Analytics = NO_ANALYTICS  # content of those topics


# ---- alerts


@dataclass(frozen=True, slots=True)
class AlertRow:
    """A rule and its state."""

    id: str
    name: str
    state: str  # ok, pending, firing, resolved
    severity: str
    target: str
    condition: str
    for_s: int
    seen: str  # when the state changed
    since_us: int
    channels: tuple[str, ...]
    enabled: bool = True
    problem: str = ""  # why it cannot be evaluated
    muted_until_us: int = 0
    muted_by: str = ""
    acknowledged_by: str = ""  # of the present firing


@dataclass(frozen=True, slots=True)
class AlertEvent:
    time_us: int
    name: str
    event: str
    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class AlertDelivery:
    time_us: int
    name: str
    notice: str
    to: str
    outcome: str  # delivered, failed, dropped
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class AlertsPage:
    """All alerts. `reason`: why they are not known; empty: they are."""

    time_us: int
    reason: str = ""
    evaluates: bool = False  # this gateway does
    mail: bool = False  # this gateway has a mail server
    rows: tuple[AlertRow, ...] = ()
    events: tuple[AlertEvent, ...] = ()  # newest first
    deliveries: tuple[AlertDelivery, ...] = ()  # newest first


# ---- the gateway


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    licence: str
    about: str  # its use


@dataclass(frozen=True, slots=True)
class Login:
    """The holder of a token."""

    name: str
    role: int


@dataclass(frozen=True, slots=True)
class About:
    """Facts about this gateway."""

    time_us: int
    version: str
    python: str
    machine: str
    started_us: int
    bootstrap: str
    packages: tuple[Package, ...]
    settings: tuple[Setting, ...]
    logins: tuple[Login, ...]  # by name


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """Dead letters of one topic and group with the same reason, numbers left out."""

    topic: str  # the dead-letter topic
    group: str
    cause: str
    pending: int
    redriven: int
    discarded: int
    newest_us: int
    sources: tuple[str, ...]  # source topics of the pending ones


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """A dead-letter topic, and how much of it was scanned."""

    name: str
    pending: int
    redriven: int
    discarded: int
    records: int = 0  # to scan
    scanned: int = 0
    older: int = 0  # older records, not scanned
    complete: bool = True


@dataclass(frozen=True, slots=True)
class DeadLetters:
    time_us: int
    topics: tuple[DeadLetterTopic, ...]
    causes: tuple[DeadLetterCause, ...]
    causes_total: int
    scanned: int  # topics scanned so far
    of: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    partition: int
    offset: int
    time_us: int  # of the record
    state: str  # "pending", "redriven", "discarded"
    topic: str  # source topic
    source_partition: int
    source_offset: int
    group: str
    attempts: int
    reason: str
    cause: str
    times: int  # redriven before
    key: str | None
    size: int  # bytes of the value
    to: str = ""  # TOPIC/PARTITION/OFFSET of the redriven record
    by: str = ""
    died_us: int | None = None  # when it became a dead letter, if it says so


@dataclass(frozen=True, slots=True)
class DeadLetterTopicDetail:
    """A dead-letter topic; `dead_letters` are the newest of the `matched` ones."""

    time_us: int
    topic: DeadLetterTopic
    causes: tuple[DeadLetterCause, ...]
    causes_total: int
    dead_letters: tuple[DeadLetter, ...]
    matched: int


@dataclass(frozen=True, slots=True)
class RecordPreview:
    """A record as a list shows it: long keys and values are cut."""

    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    size: int  # of key and value, in bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    encrypted: str = ""  # the id of the key by which the value is encrypted end to end
    fields: tuple[tuple[str, str], ...] = ()  # kind and text of the chosen fields of its JSON


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a search, in records; `of` and `left` are offsets, about as many."""

    scanned: int = 0
    bytes: int = 0
    matched: int = 0
    of: int = 0
    left: int = 0
    through_us: int | None = None
    seconds: float = 0.0
    unreadable: int = 0  # offsets in corrupt batches


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """The first content of the page of records. `reason` of its end: "limit", "end", "budget"; empty: no search. Then
    `problem` says why, and `faulty` names the wrong parameter."""

    detail: TopicDetail
    records: tuple[RecordPreview, ...] = ()
    progress: Progress = Progress()
    reason: str = ""
    cursor: str = ""
    problem: str = ""
    faulty: str = ""
    fields: tuple[str, ...] = ()  # of JSON values, that are columns
    suggested: tuple[str, ...] = ()  # that the records have
    hint: str = ""  # why the filters match nothing


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """The page of a topic's keys: one page of the list, and the revisions of the key that was looked up, the newest
    first. Where they cannot be read, `problem` says why."""

    detail: TopicDetail
    keys: tuple[RecordPreview, ...] = ()  # each with its value
    after: bytes = b""  # the last key of this page, if more follow
    key: bytes | None = None  # looked up
    history: tuple[RecordPreview, ...] = ()
    expired: bool = False  # the value of the key that was looked up: what `history` has is older
    problem: str = ""


# ---- schedules


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, with the zone of its wall clock. None: not known."""

    topic: str
    id: str
    spec: str
    revision: int
    zone: str = "UTC"
    next_us: int | None = None  # without jitter
    next_local: str = ""  # on the wall clock of its zone, as 2026-11-27T13:00:00-05:00
    paused: bool = False
    reason: str = ""  # why a broker has paused it
    waits_for: str = ""  # the calendar whose next version resumes it
    fired: int = 0
    skipped: int = 0
    fired_us: int | None = None
    late: str = ""
    late_max_ms: int = 0
    jitter_ms: int = 0
    end_us: int | None = None
    fires_max: int = 0  # 0: no limit
    author: str = ""
    created_us: int | None = None
    tzdata: str = ""


@dataclass(frozen=True, slots=True)
class SchedulesPage:
    """One page of the list. Where it cannot be read, `problem` says why."""

    time_us: int
    schedules: tuple[Schedule, ...] = ()
    after: str = ""  # of the next page; empty: this is the last
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleTime:
    """A time at which a schedule is due."""

    time_us: int
    local: str  # on the wall clock of its zone


@dataclass(frozen=True, slots=True)
class ScheduleDetail:
    """One schedule with the record that it writes, and its next times. Long values are cut."""

    time_us: int
    schedule: Schedule
    key: bytes | None = None
    value: bytes | None = None  # None: a tombstone
    size: int = 0  # of key and value, in bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    encrypted: str = ""  # the id of the key by which the value is encrypted end to end
    partition: int | None = None  # None: by the key
    ttl_ms: int | None = None
    times: tuple[ScheduleTime, ...] = ()
    end: str = ""  # why no more times follow; empty: more follow
    warning: str = ""  # about the calendar that it needs


# ---- access and the audit log: no secret is here

RULE_OPERATIONS: Final = ("read", "write", "create", "delete", "alter", "describe")  # of rules
RULE_KINDS: Final = ("topic", "group", "transaction", "cluster")  # of what they are done with


@dataclass(frozen=True, slots=True)
class AccessRule:
    principal: str
    operations: tuple[str, ...]
    kind: str
    name: str
    deny: bool = False
    author: str = ""
    added_us: int | None = None


@dataclass(frozen=True, slots=True)
class GrantedRole:
    """A role that was granted to a principal. Roles of tokens are not here."""

    role: str
    principal: str
    author: str = ""
    granted_us: int | None = None


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """An access key, as brokers know it."""

    id: str
    principal: str
    author: str = ""
    created_us: int | None = None  # None: it stands in a file of the brokers
    expires_us: int | None = None  # None: never
    in_file: bool = False


@dataclass(frozen=True, slots=True)
class PrincipalQuota:
    """Limits of a principal at each broker; 0: none."""

    principal: str
    bytes_in: int = 0
    bytes_out: int = 0
    requests: int = 0
    streams: int = 0
    author: str = ""
    set_us: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """May `principal` do that? With the decision, or why there is none."""

    principal: str
    operation: str
    kind: str
    name: str
    roles: tuple[str, ...] = ()  # of its token, beside those that are granted
    allowed: bool = False
    why: str = ""
    rule: AccessRule | None = None  # that decides
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    time_us: int
    enforced: bool
    superusers: tuple[str, ...]
    rules: tuple[AccessRule, ...]
    roles: tuple[GrantedRole, ...]
    keys_taken: bool  # brokers have the setting `access_keys`
    keys: tuple[IssuedKey, ...]
    quotas: tuple[PrincipalQuota, ...]
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One event of the audit log, with its place in the topic. Texts are cut."""

    partition: int
    offset: int
    time_us: int
    event: str  # refused, denied, admin, first_use, dropped; empty: the record cannot be read
    broker: int = 0
    principal: str = ""
    credential: str = ""
    address: str = ""
    operation: str = ""
    kind: str = ""
    name: str = ""
    code: str = ""  # empty: it was done
    message: str = ""
    count: int = 0  # of repetitions
    dry_run: bool = False
    request: str = ""  # of an admin act, as JSON
    via: str = ""  # the gateway that acted for the principal


@dataclass(frozen=True, slots=True)
class AuditTrail:
    """The newest events of the audit log, and why there are none."""

    time_us: int
    topic: str
    state: str  # filling, live, off (brokers keep no log), hidden (the gateway sees none), denied, failed
    reason: str = ""
    events: tuple[AuditRecord, ...] = ()
    events_max: int = 0
    older: int = 0  # events of the topic before these
