"""What a gateway is told when it starts. Every limit bounds memory or work that a stranger causes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, connection or gateway may take. Beyond it: 413, 429 or 503, or a close code that says so."""

    # requests
    body_bytes_max: int = 16 * MIB  # as it comes
    document_bytes_max: int = 1 * MIB  # JSON that is no records: settings of a topic, tokens of locks
    unpacked_bytes_max: int = 64 * MIB  # a body that was compressed
    line_bytes_max: int = 2 * MIB  # one line of NDJSON
    records_max: int = 10_000  # in one JSON document, or one answer
    answer_bytes_max: int = 8 * MIB  # records in one answer
    merged_partitions_max: int = 64  # that one request reads in order of time
    wait_ms_max: int = 30_000  # of a request that waits for records
    timeout_ms_max: int = 60_000  # of a request that writes
    page_max: int = 1_000
    requests_max: int = 1_000  # at once
    request_bytes_max: int = 128 * MIB  # of bodies held at once, all requests together

    # connections that stay
    connections_max: int = 10_000
    client_connections_max: int = 0  # of one address; 0: as many as of all, because a proxy is one address, too
    subscriptions_max: int = 64  # of one WebSocket
    watches_max: int = 16  # pages and channels of one tab of the dashboard
    live_pages_max: int = 200  # of the dashboard that are kept up to date at once, each for all who look at it
    frame_bytes_max: int = 1 * MIB  # that a client sends
    handshake_s: float = 10.0  # until the first frame
    idle_s: float = 60.0  # without a sign of life; pings keep a connection
    unread_s: float = 300.0  # that a client takes nothing of what waits for it; a pause of a minute is none of that
    delivery_bytes: int = 64 * KIB  # records in one frame, unless one alone is larger
    outgoing_bytes_max: int = 256 * KIB  # that wait in one connection to be written
    members_max: int = 1_000  # of groups, all WebSockets together
    member_bytes: int = 256 * KIB  # that wait in the gateway for one member
    replays_max: int = 200  # at once
    replay_bytes: int = 1 * MIB  # of records that one replay reads ahead
    heartbeat_s: float = 15.0  # of silence, after which an SSE client is sent a comment
    in_flight_max: int = 1_000  # produce and ack frames of one connection that are not answered
    in_flight_bytes_max: int = 8 * MIB  # of produce frames of one connection that are not answered

    # what is kept for all of them
    feed_bytes: int = 16 * MIB  # recent records of one topic, kept for those who follow it
    feeds_bytes_max: int = 256 * MIB  # of all topics
    feeds_max: int = 1_000  # topics that are followed at once
    feed_idle_s: float = 30.0  # that a topic is followed on after the last subscriber went
    feed_start_s: float = 10.0  # that a subscriber waits until its topic can be followed
    reads_max: int = 64  # pieces of the log that are read at once, for those who are behind
    pattern_topics_max: int = 200  # topics that one pattern may match
    pattern_s: float = 1.0  # between looks for topics that match
    buffer_max: int = 1_000_000  # records that a subscriber with drop_oldest may ask to be behind
    table_keys_max: int = 100_000  # latest values of one topic, for snapshots and conflation
    table_bytes_max: int = 64 * MIB
    table_scan_records_max: int = 5_000_000  # of the log, read to fill such a table
    tables_max: int = 32  # of all topics; one for each form that values are asked for in
    replay_ms_max: int = 24 * 3_600_000  # of one replay
    quote_boards_max: int = 4  # topics of quotes that are watched at once
    quote_symbols_max: int = 200  # of each of them; one takes 190 kB, and 200 kB more with what a job makes of it
    quote_scan_records_max: int = 1_000_000  # of the log, read for the past of quotes
    quote_scan_s: float = 30.0  # that this may take

    # dead letters
    letters_max: int = 200_000  # that are known of, all topics together; older ones are forgotten
    letter_scan_records_max: int = 500_000  # of one topic, the newest, that are looked at for letters
    letter_rate_max: int = 10_000  # that one request settles a second
    settlings_max: int = 4  # requests at once that redrive or discard

    # walks through the log, for those who look for something
    searches_max: int = 4  # searches and exports at once
    search_records_max: int = 2_000_000  # that one search looks at; then it says how to go on
    search_bytes_max: int = 1024 * MIB
    search_s: float = 30.0
    export_records_max: int = 1_000_000  # in one export
    export_s: float = 600.0


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything about one gateway that its owner chooses."""

    bootstrap: str = "localhost:9092"  # brokers to begin with, separated by commas
    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free one
    origins: tuple[str, ...] = ()  # pages of these origins may call; the gateway's own are always allowed
    hosts: tuple[str, ...] = ()  # names it may be called by, beside localhost and `host`; "*": any
    tokens_file: str = ""  # bearer tokens and their roles; empty: no authentication, loopback only
    tls_cert: str = ""
    tls_key: str = ""
    proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-For and -Proto are believed
    drain_s: float = 10.0  # that clients have to move when the gateway stops
    drain_notice_s: float = 0.0  # that it still takes requests for load balancers to see that it is not ready
    docs: bool = True  # the page of the API
    dashboard: bool = True  # the pages for people
    quotes_topic: str = "quotes"  # that the page of quotes shows, unless it is asked for another
    log_level: str = "warning"
    limits: Limits = field(default_factory=Limits)
