"""A gateway's configuration. Every limit bounds memory or work that clients cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
READ_WAIT_MS: Final = 1_000  # for records that a new leader does not know yet


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one request, connection or gateway. Beyond them: 413, 429 or 503, or a close code that says so.

    The settings' help (`comet_gateway.settings`) describes each.
    """

    # requests
    body_bytes_max: int = 16 * MIB  # as sent
    document_bytes_max: int = 1 * MIB  # JSON without records: settings of a topic, lock tokens
    unpacked_bytes_max: int = 64 * MIB  # a compressed body, decompressed
    line_bytes_max: int = 2 * MIB  # one line of NDJSON
    records_max: int = 10_000  # in one JSON document, or one answer
    answer_bytes_max: int = 8 * MIB  # records in one answer
    merged_partitions_max: int = 64  # that one request reads in order of timestamps
    wait_ms_max: int = 30_000  # of a request that waits for records
    timeout_ms_max: int = 60_000  # of a request that writes
    page_max: int = 1_000
    requests_max: int = 1_000  # at once
    request_bytes_max: int = 128 * MIB  # bodies in memory, all requests together
    bodies_max: int = 1_000  # requests that wait for the rest of their body
    body_grace_s: float = 10.0  # a small body comes with its head, or a moment later
    body_rate_min: int = 16 * KIB  # bytes a second; a mobile phone at the edge of its network sends as much

    # long-lived connections
    connections_max: int = 10_000
    client_connections_max: int = 0  # of one address; 0: no own limit, since a proxy is one address, too
    principal_share_percent: int = 50  # of each such limit; half, so that another principal always finds room
    subscriptions_max: int = 64  # of one WebSocket
    watches_max: int = 16  # of them: pages and channels of the dashboard
    live_pages_max: int = 200  # of the dashboard that are live at once, each shared by all its viewers
    frame_bytes_max: int = 1 * MIB  # sent by a client
    handshake_s: float = 10.0  # until the first frame
    idle_s: float = 60.0  # without anything from the client; pings count
    unread_s: float = 300.0  # that a client reads nothing of what waits for it; tolerates a pause of a minute
    delivery_bytes: int = 64 * KIB  # records in one frame, unless one alone is larger
    outgoing_bytes_max: int = 256 * KIB  # waiting to be written to one connection
    members_max: int = 1_000  # of groups, all WebSockets together
    member_bytes: int = 256 * KIB  # records that wait in the gateway for one member
    replays_max: int = 200  # at once
    replay_bytes: int = 1 * MIB  # of records that one replay reads ahead
    heartbeat_s: float = 15.0  # between comments that are sent to an idle SSE client
    in_flight_max: int = 1_000  # unanswered produce and ack frames of one connection
    in_flight_bytes_max: int = 8 * MIB  # of unanswered produce frames of one connection

    # shared by all connections
    feed_bytes: int = 16 * MIB  # recent records of one topic, kept for its subscribers
    feeds_bytes_max: int = 256 * MIB  # of all topics
    feeds_max: int = 1_000  # topics that are followed at once
    feed_idle_s: float = 30.0  # that a topic stays followed after its last subscriber has left
    feed_start_s: float = 10.0  # that a subscriber waits for its topic
    reads_max: int = 64  # reads of the log at once, for subscribers that are behind
    pattern_topics_max: int = 200  # topics that one pattern may match
    pattern_s: float = 1.0  # between checks for new topics that match
    buffer_max: int = 1_000_000  # records of lag that a subscriber with drop_oldest may request
    table_keys_max: int = 100_000  # latest values of one topic, for snapshots and conflation
    table_bytes_max: int = 64 * MIB
    table_scan_records_max: int = 5_000_000  # of the log, read to fill such a table
    tables_max: int = 32  # of all topics; one for each form of values
    replay_ms_max: int = 24 * 3_600_000  # of one replay
    quote_topics_max: int = 4  # topics of quotes that are followed at once
    quote_symbols_max: int = 200  # of each of them; one takes 190 kB, and 200 kB more with what a job makes of it
    quote_scan_records_max: int = 1_000_000  # of the log, read for the past of quotes
    quote_scan_s: float = 30.0  # for reading it

    # dead letters
    dead_letters_max: int = 200_000  # that are indexed, all topics together; the oldest are dropped
    dead_letter_scan_records_max: int = 500_000  # the newest of one topic, scanned for dead letters
    dead_letter_rate_max: int = 10_000  # redriven or discarded a second by one request
    redrives_max: int = 4  # redrive and discard requests at once

    # search and export
    searches_max: int = 4  # searches and exports at once
    search_records_max: int = 2_000_000  # scanned by one search; it then answers with a cursor
    search_bytes_max: int = 1024 * MIB
    search_s: float = 30.0
    export_records_max: int = 1_000_000  # in one export
    export_s: float = 600.0


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of one gateway."""

    bootstrap: str = "localhost:9092"  # initial brokers, separated by commas
    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free one
    origins: tuple[str, ...] = ()  # origins whose pages may call; the gateway's own is always allowed
    hosts: tuple[str, ...] = ()  # accepted Host names, beside localhost and `host`; "*": any
    tokens_file: str = ""  # bearer tokens and their roles; empty and no oidc_issuer: no authentication, loopback only
    oidc_issuer: str = ""  # the identity provider of the dashboard's users; empty: users log in with tokens
    oidc_client_id: str = ""
    oidc_client_secret_file: str = ""  # empty: a public client
    oidc_audience: str = ""  # of tokens (JWT) that the API takes; empty: it takes none
    oidc_redirect_url: str = ""  # empty: the address of the request
    oidc_scopes: tuple[str, ...] = ("profile", "email")  # beside openid
    oidc_name_claim: str = "sub"  # the only one that providers must keep stable and unique
    oidc_roles: tuple[str, ...] = ()  # admin=platform: a role and a value of oidc_roles_claim, or * for any user
    oidc_roles_claim: str = "groups"
    oidc_session_s: float = 12 * 3_600.0
    user_rules: bool = False  # the gateway acts for its users, by the brokers' rules for each
    tls_cert: str = ""
    tls_key: str = ""
    proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-For and -Proto are trusted
    drain_s: float = 10.0  # that clients get to reconnect at shutdown
    drain_notice_s: float = 0.0  # between "not ready" and the drain, for load balancers to notice
    docs: bool = True  # the page of the API
    dashboard: bool = True  # the dashboard
    quotes_topic: str = "quotes"  # the default topic of the quotes page
    cluster_name: str = ""  # shown on every page; empty: the first bootstrap address
    clusters: tuple[str, ...] = ()  # name=url: dashboards of other clusters, as links on every page
    alerts: bool = True  # rules, their evaluation and delivery
    alert_networks: tuple[str, ...] = ()  # whose addresses webhooks may have beside public ones
    alert_secret_file: str = ""  # with which webhooks are signed; empty: they are not
    smtp_server: str = ""  # HOST:PORT; empty: no e-mail
    smtp_security: str = "starttls"  # or tls, none
    smtp_user: str = ""
    smtp_password_file: str = ""
    smtp_from: str = ""
    log_level: str = "warning"
    log_format: str = "text"
    limits: Limits = field(default_factory=Limits)
