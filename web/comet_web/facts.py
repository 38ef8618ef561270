"""What is known of a cluster at one moment: what views are made from. Immutable.

Unknown is None, never 0: a broker that does not answer has no rate. Rates are per second over the last WINDOW_S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from comet_web.facts_analytics import NO_ANALYTICS, Analytics

WINDOW_S: Final = 10  # that rates are taken over


@dataclass(frozen=True, slots=True)
class Track:
    """A figure over time, oldest first, one value every `step_s`; None where it is not known. The last value is of the
    step that ends at `end_us`."""

    step_s: int
    end_us: int
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Failed:
    """An entity of which a broker has met with an unexpected error."""

    kind: str  # "partition", "slot", "group", "transaction", "share", "topic", "task"
    name: str
    step: str
    reason: str
    since_us: int
    count: int
    standing: bool  # it stands still until it is resumed; else it goes on


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    address: str = ""
    rack: str = ""
    up: bool = False  # it answers
    controller: bool = False
    draining: bool = False
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
    problems: tuple[str, ...] = ()  # what it says is wrong with it
    failed: tuple[Failed, ...] = ()  # those that stand still first


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    internal: bool
    partitions: int
    replicas: int
    in_sync: int  # of the partition that has the fewest
    under_replicated: int  # partitions
    offline: int  # partitions without a leader
    retention_ms: int
    retention_bytes: int  # -1: without a bound
    records: int | None = None
    bytes: int | None = None
    in_rate: float | None = None
    in_bytes_rate: float | None = None
    out_rate: float | None = None
    last_us: int | None = None  # when the last record was written
    groups: tuple[str, ...] = ()
    lag_max: int | None = None  # of the groups that read it; None: nobody does, or it is not known
    trend: Track | None = None  # records in per second, 15 minutes
    retention_records: int = -1
    conflicts: int = 0  # partitions with a replica that does not follow, as it would lose committed records


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    kind: str  # "consumer", "share"
    state: str  # "empty", "stable", "rebalancing"
    members: int
    topics: tuple[str, ...]
    coordinator: int
    lag: int | None = None  # events, all topics
    lags: Mapping[str, int] = field(default_factory=dict)  # by topic
    age_s: float | None = None  # of the oldest event that is not committed
    drain_s: float | None = None  # at the pace of late; None while `growing` says which it is
    growing: bool | None = None
    last_commit_us: int | None = None
    trend: Track | None = None  # lag, 15 minutes


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the cluster: an election, a restart, a topic made, changed or deleted."""

    time_us: int
    kind: str
    text: str
    topic: str = ""
    partition: int | None = None
    broker: int | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """All of it, as it was at `time_us`."""

    time_us: int
    cluster_id: str = ""
    reachable: bool = True  # some broker answered; else everything here is what was known before
    reason: str = ""  # why none did
    controller: int | None = None
    brokers: tuple[Broker, ...] = ()  # by id; those that are known but gone, too
    topics: Mapping[str, Topic] = field(default_factory=dict)  # by name
    groups: Mapping[str, Group] = field(default_factory=dict)
    events: tuple[Event, ...] = ()  # newest first
    # Of all brokers together, of the range asked for; by figure, as `comet.HistoryTrack` names those of a broker.
    tracks: Mapping[str, Track] = field(default_factory=dict)


RANGES_S: Final[Mapping[str, int]] = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400}


@dataclass(frozen=True, slots=True)
class Partition:
    index: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_start: int | None = None
    log_end: int | None = None
    high_watermark: int | None = None
    bytes: int | None = None
    in_rate: float | None = None
    last_us: int | None = None
    failed: str = ""
    conflicts: tuple[str, ...] = ()  # replicas that do not follow the leader, and why


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str
    default: str
    source: str  # "default", "topic", "file", …
    about: str
    unit: str = ""  # "ms", "bytes", …: how a page may say it in words


@dataclass(frozen=True, slots=True)
class TopicDetail:
    cluster: Cluster
    topic: Topic
    partitions: tuple[Partition, ...]
    settings: tuple[Setting, ...]
    tracks: Mapping[str, Track] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance: str
    client: str
    owned: Mapping[str, tuple[int, ...]]
    silent_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Lag:
    """Of a group in one partition."""

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
    """A topic, and how far one of its groups is in each of its partitions."""

    detail: TopicDetail
    group: str = ""  # whose lags they are; empty: nobody was chosen
    lags: tuple[Lag, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDetail:
    cluster: Cluster
    group: Group
    members: tuple[Member, ...]
    lags: tuple[Lag, ...]
    tracks: Mapping[str, Track] = field(default_factory=dict)  # lag by topic
    rebalances_us: tuple[int, ...] = ()
    reset_allowed: bool = False  # nobody is a member


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
    """The latest of one symbol. Prices as they were written; no price is None."""

    symbol: str
    last: float | None
    bid: float | None
    ask: float | None
    volume: float | None  # traded since `Quotes.since_us`
    first: float | None  # the price that changes are counted from, the first since then
    time_us: int  # of its event
    heard_us: int  # when it came
    records: int
    trend: Sequence[float | None] = ()  # of the price, 15 minutes


@dataclass(frozen=True, slots=True)
class Candles:
    """Of one symbol, oldest first; each list has one value for every step, None where nothing was quoted. `forming` is
    the one that the clock is in: open, high, low, close, volume, spread."""

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
class Quotes:
    """A topic of quotes, as the gateway follows it."""

    time_us: int
    topic: str
    state: str  # "absent": there is no such topic; "filling", "live"; "failed": it cannot be followed
    reason: str = ""
    quotes: Mapping[str, Quote] = field(default_factory=dict)  # by symbol
    symbol: str = ""  # whose candles these are
    candles: Candles | None = None
    partition: int | None = None  # where the latest of that symbol is, and at which offset
    offset: int | None = None
    since_us: int | None = None  # how far back what is known reaches
    bounded: str = ""  # why not further
    records: int = 0
    rate: float | None = None  # records a second
    unread: int = 0  # records that are no quotes, as far as is understood
    unread_reason: str = ""
    symbols_left_out: int = 0  # beyond the bound
    lost: int = 0  # records that came faster than they could be read
    bytes: int = 0  # of memory, that all this takes
    delay_ms: float | None = None  # from the time in the quote to when it came, of the latest
    last_us: int | None = None  # when the latest came
    topics: tuple[str, ...] = ()  # those whose names begin with this one's and a dot: what is made of it
    analytics: Analytics = NO_ANALYTICS  # what is in those


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    licence: str
    about: str  # what it is here for


@dataclass(frozen=True, slots=True)
class Login:
    """Somebody who has a token."""

    name: str
    role: int


@dataclass(frozen=True, slots=True)
class About:
    """This gateway."""

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
class LetterCause:
    """Dead letters of one topic and group that died of the same: the reason, without its numbers."""

    topic: str  # that they are in
    group: str
    cause: str
    pending: int
    redriven: int
    discarded: int
    newest_us: int
    sources: tuple[str, ...]  # topics that the pending ones come from


@dataclass(frozen=True, slots=True)
class LetterTopic:
    """A topic that holds dead letters, and how much of it was looked at."""

    name: str
    pending: int
    redriven: int
    discarded: int
    records: int = 0  # that are to be looked at
    looked: int = 0
    older: int = 0  # records before those, that are not looked at
    complete: bool = True


@dataclass(frozen=True, slots=True)
class DeadLetters:
    time_us: int
    topics: tuple[LetterTopic, ...]
    causes: tuple[LetterCause, ...]
    causes_total: int
    looked: int  # topics that were looked at so far, to find those
    of: int


@dataclass(frozen=True, slots=True)
class Letter:
    partition: int
    offset: int
    time_us: int  # of the event
    state: str  # "pending", "redriven", "discarded"
    topic: str  # where it was read
    source_partition: int
    source_offset: int
    group: str
    attempts: int
    reason: str
    cause: str
    times: int  # that it was redriven before
    key: str | None
    size: int  # bytes of the value
    to: str = ""  # TOPIC/PARTITION/OFFSET of the record that it became
    by: str = ""


@dataclass(frozen=True, slots=True)
class LetterTopicDetail:
    """`letters` are the newest of `matched` that fit what was asked for."""

    time_us: int
    topic: LetterTopic
    causes: tuple[LetterCause, ...]
    causes_total: int
    letters: tuple[Letter, ...]
    matched: int


@dataclass(frozen=True, slots=True)
class RecordPreview:
    """A record as a list shows it: of a long key or value only the beginning is here."""

    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    size: int  # of key and value, in bytes
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is. Records but for `of` and `left`, which are offsets, about as many."""

    scanned: int = 0
    bytes: int = 0
    matched: int = 0
    of: int = 0
    left: int = 0
    through_us: int | None = None
    seconds: float = 0.0
    unreadable: int = 0  # offsets in batches that cannot be read


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """`reason`: why it ends there: "limit", "end", "budget"; empty: nothing was looked for. `problem` says why not, and
    `faulty` which parameter of the page is wrong with it."""

    detail: TopicDetail
    records: tuple[RecordPreview, ...] = ()
    progress: Progress = Progress()
    reason: str = ""
    cursor: str = ""
    problem: str = ""
    faulty: str = ""
