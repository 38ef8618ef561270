"""What a gateway is told: its table of settings, for flags, environment and file (see comet.settings).

    --bootstrap b1:9092     COMET_GATEWAY_BOOTSTRAP=b1:9092     bootstrap = "b1:9092" in the file that --config or
                                                                COMET_GATEWAY_CONFIG names

Limits are settings like all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.settings import Setting, Table
from comet_gateway.config import GatewayConfig, Limits
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
    _row("bootstrap", "text", "Brokers to begin with, separated by commas."),
    _row("host", "text", "The address to listen on; anything but loopback needs a tokens_file."),
    _row("port", "number", "The port to listen on; 0 picks a free one.", 0, 65535),
    _row("origins", "words", "Pages of these origins may call, as https://app.example.com; our own always may."),
    _row("hosts", "words", "Names it may be called by, beside addresses, localhost and `host`; * for any."),
    _row("tokens_file", "text", "Bearer tokens and their roles; without it nobody needs one."),
    _row("tls_cert", "text", "A certificate with its chain (PEM): makes it HTTPS."),
    _row("tls_key", "text", "The key of that certificate."),
    _row("proxies", "words", "Addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed."),
    _time("drain_s", "That clients have to move when the gateway stops."),
    _time("drain_notice_s", "That it takes requests on while it says it is not ready, for load balancers to notice."),
    _row("docs", "switch", "Whether the page of the API is served."),
    _row("dashboard", "switch", "Whether the dashboard is served, its pages and what they load."),
    _row("quotes_topic", "text", "The topic that the page of quotes shows, unless it is asked for another."),
    _row("log_level", "level", "What is logged to stderr: debug, info, warning or error."),
    _size("body_bytes_max", "A request's body as it comes."),
    _size("document_bytes_max", "A JSON document that holds no records."),
    _size("unpacked_bytes_max", "A body that came compressed."),
    _size("line_bytes_max", "One line of NDJSON."),
    _count("records_max", "Records in one JSON document, and in one answer."),
    _size("answer_bytes_max", "Records in one answer."),
    _count("merged_partitions_max", "Partitions that one request reads in the order of time."),
    _time("wait_ms_max", "That a request may wait for records."),
    _time("timeout_ms_max", "That a request may take to write."),
    _count("page_max", "Entries of a list in one answer."),
    _count("requests_max", "Requests at once."),
    _size("request_bytes_max", "Bodies, and frames that write, held at once, of all together."),
    _count("connections_max", "Connections that stay: WebSockets and event streams."),
    _count("client_connections_max", "Of these, from one address; 0: no limit of its own.", 0),
    _count("subscriptions_max", "Subscriptions of one WebSocket."),
    _count("watches_max", "Pages and channels of one tab of the dashboard."),
    _count("live_pages_max", "Pages of the dashboard that are kept up to date at once, each for all who look at it."),
    _size("frame_bytes_max", "A frame that a client sends."),
    _time("handshake_s", "That a client has until its first frame.", 100),
    _time("idle_s", "Without a sign of life, then a connection is closed.", 1_000),
    _time("unread_s", "That a client takes nothing of what waits for it; then its connection is cut.", 1_000),
    _size("delivery_bytes", "Records in one frame, unless one alone is larger."),
    _size("outgoing_bytes_max", "That wait in one connection to be written."),
    _count("members_max", "Members of groups, all WebSockets together."),
    _size("member_bytes", "That wait in the gateway for one member."),
    _count("replays_max", "Replays at once."),
    _size("replay_bytes", "Records that one replay reads ahead."),
    _time("heartbeat_s", "Of silence, after which an event stream is sent a comment.", 100),
    _count("in_flight_max", "Frames of one connection that are not answered yet."),
    _size("in_flight_bytes_max", "Bytes of those that write records."),
    _size("feed_bytes", "Recent records of one topic that are kept for its followers."),
    _size("feeds_bytes_max", "Of all topics."),
    _count("feeds_max", "Topics that are followed at once."),
    _time("feed_idle_s", "That a topic is followed on after its last follower went."),
    _time("feed_start_s", "That a subscriber waits until its topic can be followed.", 100),
    _count("reads_max", "Pieces of the log read at once for those who are behind."),
    _count("pattern_topics_max", "Topics that one pattern may match."),
    _time("pattern_s", "Between looks for topics that match a pattern.", 100),
    _count("buffer_max", "Records that a subscriber with drop_oldest may ask to be behind.", 1, 100_000_000),
    _count("table_keys_max", "Keys in a topic's table of latest values.", 1, 100_000_000),
    _size("table_bytes_max", "Bytes in that table."),
    _count("table_scan_records_max", "Records of a log that are read to fill that table.", 1, 10_000_000_000),
    _count("tables_max", "Such tables, of all topics."),
    _time("replay_ms_max", "Of the past in one replay.", 0, 366 * _DAY_MS),
    _count("quote_boards_max", "Topics of quotes that are watched at once."),
    _count("quote_symbols_max", "Symbols of one topic of quotes; each takes 190 kB, 390 kB with analytics."),
    _count("quote_scan_records_max", "Records of a log that are read for the past of quotes.", 1, 10_000_000_000),
    _time("quote_scan_s", "That reading it may take.", 100),
    _count("searches_max", "Searches and exports at once."),
    _count("search_records_max", "Records that one search looks at.", 1, 10_000_000_000),
    _size("search_bytes_max", "Bytes that one search looks at."),
    _time("search_s", "That one search may take.", 100),
    _count("export_records_max", "Records in one export.", 1, 10_000_000_000),
    _time("export_s", "That one export may take.", 100),
    _count("letters_max", "Dead letters that are known of, of all topics; older ones are forgotten.", 1, 100_000_000),
    _count("letter_scan_records_max", "Records of one topic that are looked at for dead letters.", 1, 10_000_000_000),
    _count("letter_rate_max", "Dead letters that one request settles a second."),
    _count("settlings_max", "Requests at once that redrive or discard dead letters."),
)  # fmt: skip
TABLE: Final = Table(SETTINGS, config_variable=CONFIG_VARIABLE)
_LIMITS: Final = frozenset(field.name for field in fields(Limits))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a gateway was told, put together."""

    config: GatewayConfig
    log_level: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting, and --config. What is absent stays None."""
    TABLE.add_flags(parser)


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Loaded:
    """Puts flags (by setting name; None: not given), environment and file together. Raises InvalidArgument."""
    values = TABLE.merged(flags, environ)
    if bool(values.get("tls_cert")) != bool(values.get("tls_key")):
        raise InvalidArgument("tls_cert and tls_key belong together: give both or neither")
    for origin in values.get("origins", ()):
        checked_origin(origin)
    limits = Limits(**{name: value for name, value in values.items() if name in _LIMITS})
    plain = {name: value for name, value in values.items() if name not in _LIMITS}
    config = GatewayConfig(**plain, limits=limits)
    return Loaded(config, config.log_level)


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, environ: Mapping[str, str]) -> Loaded:
    """Reads a command line that has the flags of `add_flags`."""
    return load(vars(parser.parse_args(arguments)), environ)


def markdown() -> str:
    """The table as the page for operators shows it."""
    return TABLE.markdown()
