"""The gateway's table of settings, for flags, environment and file (see comet.settings.server).

    --bootstrap b1:9092     COMET_GATEWAY_BOOTSTRAP=b1:9092     bootstrap = "b1:9092" in the file that --config or
                                                                COMET_GATEWAY_CONFIG names

Limits are settings, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.processes.logs import log_format_of
from comet.settings.client import BOOTSTRAP_VARIABLE
from comet.settings.server import Setting, Table
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.http.cluster_links import cluster_link
from comet_gateway.http.origins import checked_origin

PREFIX: Final = "COMET_GATEWAY_"
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"
_DAY_MS: Final = 24 * 3_600_000
_GIB: Final = 1 << 30
_DEFAULTS: Final = {field.name: field.default for field in (*fields(GatewayConfig), *fields(Limits))}


def _row(name: str, kind: str, about: str, low: int = 0, high: int = 0) -> Setting:
    return Setting(name, kind, about, low, high, default=_DEFAULTS[name], prefix=PREFIX)


def _count(name: str, about: str, low: int = 1, high: int = 1_000_000) -> Setting:
    return _row(name, "number", about, low, high)


def _size(name: str, about: str, low: int = 1024, high: int = 64 * _GIB) -> Setting:
    return _row(name, "bytes", about, low, high)


def _time(name: str, about: str, low_ms: int = 0, high_ms: int = _DAY_MS) -> Setting:
    return _row(name, "duration" if "_ms" in name else "seconds", about, low_ms, high_ms)


SETTINGS: Final = (
    _row("bootstrap", "text", "Initial brokers, separated by commas; if it is not given, COMET_BOOTSTRAP."),
    _row("host", "text", "Address to listen on; beyond loopback it needs users, and tls_cert or proxies."),
    _row("port", "number", "Port to listen on; 0 picks a free one.", 0, 65535),
    _row("origins", "words", "Other origins whose pages may call the gateway, such as https://app.example.com."),
    _row("hosts", "words", "Accepted Host names, beside addresses, localhost and `host`; * for any."),
    _row("tokens_file", "text", "File with bearer tokens and their roles; without it no token is taken."),
    _row("oidc_issuer", "text", "Identity provider (OpenID Connect) of the dashboard's users, an https URL."),
    _row("oidc_client_id", "text", "The gateway's client id at the identity provider."),
    _row("oidc_client_secret_file", "text", "File with the client secret, readable by its owner alone; default: none."),
    _row("oidc_audience", "text", "Audience of tokens (JWT) of the provider for the API; default: it takes none."),
    _row("oidc_redirect_url", "text", "URL of /login/oidc/callback for the provider; default: the request's own."),
    _row("oidc_scopes", "words", "Scopes that a login requests, beside openid."),
    _row("oidc_name_claim", "text", "Claim with the name of the user."),
    _row("oidc_roles", "words", "Roles by values of oidc_roles_claim, such as admin=platform; viewer=* is any user."),
    _row("oidc_roles_claim", "text", "Claim with the values of oidc_roles; with user_rules also the roles at brokers."),
    _time("oidc_session_s", "Longest session of a user of the identity provider.", 1_000, 7 * _DAY_MS),
    _row("user_rules", "switch", "Whether the brokers' rules decide for each user; needs `gateways` at the brokers."),
    _row("tls_cert", "text", "Certificate with its chain (PEM), for HTTPS."),
    _row("tls_key", "text", "Private key of the certificate (PEM)."),
    _row("proxies", "words", "Addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted."),
    _time("drain_s", "Time that clients get to reconnect at shutdown."),
    _time("drain_notice_s", "Time between not being ready and the drain at shutdown, for load balancers to notice."),
    _row("docs", "switch", "Whether the page of the API (/docs) is served."),
    _row("dashboard", "switch", "Whether the dashboard is served."),
    _row("quotes_topic", "text", "Default topic of the quotes page."),
    _row("cluster_name", "text", "Name of the cluster on the dashboard's pages; default: the first initial broker."),
    _row("clusters", "words", "Dashboards of clusters to switch to, such as prod=https://comet.example.com."),
    _row("alerts", "switch", "Whether alerts are served, evaluated and delivered."),
    _row("alert_networks", "words", "Networks of webhooks beside public addresses, such as 10.1.0.0/16."),
    _row("alert_secret_file", "text", "File with the secret that signs webhooks, readable by its owner alone."),
    _row("smtp_server", "text", "Mail server for alerts as HOST:PORT; default: no e-mail."),
    _row("smtp_security", "text", "How the mail server is reached: starttls, tls or none."),
    _row("smtp_user", "text", "User name at the mail server."),
    _row("smtp_password_file", "text", "File with the password of smtp_user, readable by its owner alone."),
    _row("smtp_from", "text", "Sender of e-mails, such as alerts@example.com."),
    _row("log_level", "level", "Level of the log on stderr: debug, info, warning or error."),
    _row("log_format", "log format", "Form of the log: text for people, or json, one object a line."),
    _size("body_bytes_max", "Size of a request's body as sent."),
    _size("document_bytes_max", "Size of a JSON document without records."),
    _size("unpacked_bytes_max", "Size of a compressed body, decompressed."),
    _size("line_bytes_max", "Size of one line of NDJSON."),
    _count("records_max", "Number of records in one JSON document, and in one answer."),
    _size("answer_bytes_max", "Size of the records in one answer."),
    _count("merged_partitions_max", "Partitions that one request merges by timestamp."),
    _time("wait_ms_max", "Longest `wait_ms` of a request for records."),
    _time("timeout_ms_max", "Longest `timeout_ms` of a request that writes."),
    _count("page_max", "Entries of a list on one page."),
    _count("requests_max", "Requests at once."),
    _size("request_bytes_max", "Bodies, also decompressed ones, and frames with records in memory, all together."),
    _count("bodies_max", "Requests at once that wait for the rest of their body; each client has a share of them."),
    _time("body_grace_s", "Time that a body may take, beside the time for its bytes at body_rate_min.", 100),
    _size("body_rate_min", "Bytes a second below which a body is too slow; NDJSON may be slower.", 1),
    _count("connections_max", "WebSockets and event streams at once."),
    _count("client_connections_max", "WebSockets and event streams from one address at once; 0: no such limit.", 0),
    _count("principal_share_percent", "Share of connections, replays, members, waits that a principal gets.", 1, 100),
    _count("subscriptions_max", "Subscriptions of one WebSocket."),
    _count("watches_max", "Subscriptions of one WebSocket to pages and channels of the dashboard."),
    _count("live_pages_max", "Live pages of the dashboard at once, each shared by all its viewers."),
    _size("frame_bytes_max", "Size of a frame that a client sends."),
    _time("handshake_s", "Time that a client gets until its first frame.", 100),
    _time("idle_s", "Time without data or pings from the client after which a connection is closed.", 1_000),
    _time("unread_s", "Time without reading waiting data after which a client is disconnected.", 1_000),
    _size("delivery_bytes", "Size of the records in one frame; a larger record gets its own."),
    _size("outgoing_bytes_max", "Data that waits to be sent on one connection."),
    _count("members_max", "Group members, all WebSockets together."),
    _size("member_bytes", "Records that wait in the gateway for one group member."),
    _count("replays_max", "Replays at once."),
    _size("replay_bytes", "Records that one replay reads ahead."),
    _time("heartbeat_s", "Time between comments on an idle event stream.", 100),
    _count("in_flight_max", "Unanswered frames of one connection."),
    _size("in_flight_bytes_max", "Bytes of unanswered frames with records of one connection."),
    _size("feed_bytes", "Recent records of one topic in memory, for its subscribers."),
    _size("feeds_bytes_max", "Recent records of all topics in memory."),
    _count("feeds_max", "Topics with subscribers at once."),
    _time("feed_idle_s", "Time for which a topic stays followed after its last subscriber has left."),
    _time("feed_start_s", "Time that a subscriber waits for a topic without leaders.", 100),
    _count("reads_max", "Reads of the log at once for subscribers that are behind."),
    _count("pattern_topics_max", "Topics that one pattern may match."),
    _time("pattern_s", "Time between checks for new topics that match a pattern.", 100),
    _count("buffer_max", "Largest `buffer` of a subscriber with drop_oldest, in records.", 1, 100_000_000),
    _count("table_keys_max", "Keys in a topic's table of latest values.", 1, 100_000_000),
    _size("table_bytes_max", "Size of a table of latest values."),
    _count("table_scan_records_max", "Records of a topic that are read to fill such a table.", 1, 10_000_000_000),
    _count("tables_max", "Tables of latest values, of all topics."),
    _time("replay_ms_max", "Longest time range of one replay.", 0, 366 * _DAY_MS),
    _count("quote_topics_max", "Topics on the quotes page that are followed at once."),
    _count("quote_symbols_max", "Symbols of one topic of quotes; each takes 190 kB of memory, 390 kB with analytics."),
    _count("quote_scan_records_max", "Records of a topic that are read for the history of quotes.", 1, 10_000_000_000),
    _time("quote_scan_s", "Longest time to read the history of quotes.", 100),
    _count("searches_max", "Searches and exports at once."),
    _count("search_records_max", "Records that one search scans.", 1, 10_000_000_000),
    _size("search_bytes_max", "Bytes that one search scans."),
    _time("search_s", "Longest duration of one search.", 100),
    _count("export_records_max", "Records in one export.", 1, 10_000_000_000),
    _time("export_s", "Longest duration of one export.", 100),
    _count("dead_letters_max", "Dead letters in the index, of all topics; the oldest are dropped.", 1, 100_000_000),
    _count("dead_letter_scan_records_max", "Newest records of a topic, scanned for dead letters.", 1, 10_000_000_000),
    _count("dead_letter_rate_max", "Dead letters that one request redrives or discards a second."),
    _count("redrives_max", "Redrive and discard requests at once."),
)  # fmt: skip
TABLE: Final = Table(SETTINGS, config_variable=CONFIG_VARIABLE)
_LIMITS: Final = frozenset(field.name for field in fields(Limits))


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings of a gateway, merged and checked."""

    config: GatewayConfig
    log_level: str
    log_format: str


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Loaded:
    """Merges flags (by setting name; None: not given), environment and file. Raises InvalidArgument.

    Without a `bootstrap` of its own a gateway takes that of clients, which it is, as it takes their COMET_CLIENT_*;
    without a `log_format` that of all processes of Comet."""
    values = TABLE.merged(flags, environ)
    if shared := environ.get(BOOTSTRAP_VARIABLE):
        values = {"bootstrap": shared, **values}
    values = {"log_format": log_format_of(environ), **values}
    if bool(values.get("tls_cert")) != bool(values.get("tls_key")):
        raise InvalidArgument("tls_cert and tls_key belong together: give both or neither")
    for origin in values.get("origins", ()):
        checked_origin(origin)
    for cluster in values.get("clusters", ()):
        cluster_link(cluster)
    limits = Limits(**{name: value for name, value in values.items() if name in _LIMITS})
    plain = {name: value for name, value in values.items() if name not in _LIMITS}
    config = GatewayConfig(**plain, limits=limits)
    return Loaded(config, config.log_level, config.log_format)


def markdown() -> str:
    """The table of settings for the documentation."""
    return TABLE.markdown()
