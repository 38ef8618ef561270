"""The table of a broker's settings, for flags, environment and file (see comet.settings.server)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.settings.server import Setting, Table
from comet.settings.topic import REPLICAS_MAX, TOPIC_SETTINGS, TopicConfig, TopicSetting, plain
from comet_broker import limits
from comet_broker.config import BrokerConfig

CONFIG_VARIABLE: Final = "COMET_CONFIG"
_HOUR_MS: Final = 3_600_000
_TOPIC: Final = "topic_"
_OF_THE_LOG: Final = {"log_level": "warning", "log_format": "text"}  # by name with defaults; not in BrokerConfig
_OTHERS: Final = {"data": "comet-data", **_OF_THE_LOG}
MEMORY: Final = "Memory that the broker may use; 0 for the limit of its control group, else all of the machine's."


def _default(name: str) -> object:
    if name in _OTHERS:
        return _OTHERS[name]
    field = {"id": "broker_id"}.get(name, name)
    return next(f.default for f in fields(BrokerConfig) if f.name == field)


def _row(
    name: str, kind: str, about: str, low: int = 0, high: int = 0, *, secret: bool = False, file_only: bool = False
) -> Setting:
    return Setting(name, kind, about, low, high, secret, _default(name), file_only=file_only)


def _topic_row(row: TopicSetting) -> Setting:
    about = f"Default {row.name} of a new topic."
    return Setting(
        _TOPIC + row.name, "value", about, default=row.default, parse=row.parse, format=row.format, words=row.words
    )


SETTINGS: Final = (
    _row("id", "number", "Number of the broker in its cluster. Required with etcd.", 1, (1 << 31) - 1),
    _row("data", "path", "Data folder of the broker."),
    _row("host", "text", "Address to listen on; 0.0.0.0 for all."),
    _row("port", "number", "Port to listen on; 0 picks a free one.", 0, 65535),
    _row("advertised_host", "text", "Host that others connect to, if it differs from `host`."),
    _row("advertised_port", "number", "Port that others connect to; 0 for `port`.", 0, 65535),
    _row("wire", "switch", "Serve the wire, the transport of Comet's own programs, beside gRPC."),
    _row("wire_socket", "switch", "Serve the wire to local clients also on a Unix socket in the data folder."),
    _row("wire_port", "number", "Port of the wire for clients, which learn it from brokers; 0: a free one.", 0, 65535),
    _row("advertised_wire_port", "number", "Port of the wire that clients connect to; 0: `wire_port`.", 0, 65535),
    _row("clients_cert", "path", "Certificate (PEM) that clients see; enables TLS on `port`."),
    _row("clients_key", "path", "Key of that certificate."),
    _row("clients_ca", "path", "CA certificates (PEM); clients must present a certificate that one of them signed."),
    _row("access_keys", "path", "First access keys (TOML); clients must present a key, in place of a certificate."),
    _row("jwt_issuer", "text", "Issuer of tokens (JWT) that clients present in place of access keys."),
    _row("jwt_audience", "text", "Audience that a token must name."),
    _row("jwt_keys", "text", "The issuer's keys (a JWK set): an https URL, or a file."),
    _row("jwt_claim", "text", "Claim of a token that names its principal: ann is user:ann."),
    _row("jwt_roles", "text", "Claim of a token with the roles of its principal: finance is role:finance."),
    _row("superusers", "words", "Clients that may do everything, such as client:admin; others then need rules."),
    _row("gateways", "words", "Clients that may act for their users, such as client:gateway, with `superusers`."),
    _row("audit", "switch", "Keep an audit log; if not set, a broker with `superusers` does."),
    _row("brokers_host", "text", "Address to listen on for other brokers, if it differs from `host`."),
    _row("brokers_port", "number", "Port for other brokers, with `brokers_cert`; 0 picks a free one.", 0, 65535),
    _row("brokers_wire_port", "number", "Port of the wire for other brokers; 0: a free one.", 0, 65535),
    _row("brokers_advertised_host", "text", "Host that other brokers connect to, if it differs from that for clients."),
    _row("brokers_cert", "path", "Certificate (PEM) of the broker between brokers; separates them from clients."),
    _row("brokers_key", "path", "Key of that certificate."),
    _row("brokers_ca", "path", "CA certificates (PEM) that sign the certificates of all brokers."),
    _row("insecure", "switch", "Listen beyond loopback without TLS, open to strangers.", file_only=True),
    _row("metrics_port", "number", "HTTP port of /metrics, /livez and /readyz; 0 for none.", 0, 65535),
    _row("metrics_token", "text", "Bearer token that /metrics requires beyond loopback.", secret=True),
    _row("metrics_hosts", "words", "Other accepted Host names on that port, such as b1.example.com; * for any."),
    _row("rack", "text", "Rack of the broker; the replicas of a partition are spread over racks."),
    _row("etcd", "addresses", "Members of etcd. Without etcd the broker runs alone."),
    _row("etcd_user", "text", "User name of the broker at etcd."),
    _row("etcd_password", "text", "Password of that user.", secret=True),
    _row("etcd_ca", "path", "CA certificates (PEM) to verify etcd with; enables TLS."),
    _row("etcd_cert", "path", "Client certificate for etcd."),
    _row("etcd_key", "path", "Key of the client certificate."),
    _row("cluster", "text", "Name of the cluster; several clusters can share one etcd."),
    _row("memory_bytes_max", "bytes", MEMORY, 0, 1 << 50),
    _row("session_ms", "duration", "Time without a keepalive after which a broker is dead.", 1_000, _HOUR_MS),
    _row("replica_lag_ms", "duration", "Time behind after which a follower is out of sync.", 100, _HOUR_MS),
    _row("default_replicas", "number", "Default number of replicas of a new topic.", 1, REPLICAS_MAX),
    _row("rebalance_ms", "duration", "Time without problems before preferred leaders lead again.", 100, _HOUR_MS),
    _row("retention_check_ms", "duration", "Interval of checks for retention and compaction.", 10, _HOUR_MS),
    _row("compaction_rate", "bytes", "Bytes that compaction reads in a second.", 1 << 16, 1 << 40),
    _row("compaction_memory", "bytes", "Memory for the keys of a partition that is compacted.", 1 << 20, 1 << 40),
    _row("filter_percent", "number", "Percent of a core for filters, beyond what they save; 0: none.", 0, 100),
    _row("drain_grace_ms", "duration", "Time that a stopping broker waits for clients to leave.", 0, _HOUR_MS),
    _row("log_level", "level", "Log level on stderr: debug, info, warning or error."),
    _row("log_format", "log format", "Form of the log: text for people, or json, one object a line."),
    *(_topic_row(row) for row in TOPIC_SETTINGS.values() if row.cluster),
)  # fmt: skip
TABLE: Final = Table(SETTINGS, config_variable=CONFIG_VARIABLE)
BY_NAME: Final = TABLE.by_name


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings of a broker, read and merged."""

    config: BrokerConfig
    log_level: str
    log_format: str


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> LoadedSettings:
    """Merges flags (by setting name; None: not given), environment and file. Raises InvalidArgument, naming the source
    of the wrong value."""
    values = TABLE.merged(flags, environ)
    return LoadedSettings(_config(values), **{name: values.get(name, default) for name, default in _OF_THE_LOG.items()})


def _config(values: Mapping[str, Any]) -> BrokerConfig:
    if values.get("etcd") and "id" not in values:
        raise InvalidArgument("with etcd every broker needs its own number: set --id N, COMET_ID or id = N")
    if bool(values.get("etcd_cert")) != bool(values.get("etcd_key")):
        raise InvalidArgument("etcd_cert and etcd_key belong together: set both or neither")
    if 0 < values.get("memory_bytes_max", 0) < limits.MEMORY_BYTES_MIN:
        raise InvalidArgument(f"memory_bytes_max must be 0 or at least {limits.MEMORY_BYTES_MIN >> 20}MiB")
    topic = {name.removeprefix(_TOPIC): value for name, value in values.items() if name.startswith(_TOPIC)}
    own = {
        {"id": "broker_id"}.get(name, name): value
        for name, value in values.items()
        if not name.startswith(_TOPIC) and name not in _OF_THE_LOG
    }
    return BrokerConfig(**{"data": Path(str(_default("data"))), **own}, topic_defaults=TopicConfig(**topic))


def described(config: BrokerConfig) -> list[dict[str, str]]:
    """The settings as other programs see them: every row but the log's, and of a secret only whether it is set."""
    rows = []
    for row in SETTINGS:
        if row.name in _OF_THE_LOG:
            continue
        default = row.default
        if row.name.startswith(_TOPIC):
            value: object = getattr(config.topic_defaults, row.name.removeprefix(_TOPIC))
        else:
            value = getattr(config, {"id": "broker_id"}.get(row.name, row.name))
        source = "default" if _text(value) == _text(default) else "given"
        shown = ("set" if value else "") if row.secret else _text(value)
        unit = TOPIC_SETTINGS[row.name.removeprefix(_TOPIC)].unit if row.name.startswith(_TOPIC) else row.unit
        row_of = {"name": row.name, "value": shown, "default": _text(default), "source": source, "about": row.about}
        rows.append(row_of | {"unit": unit})
    return rows


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(plain(value))


def markdown() -> str:
    """The table of settings for docs/operating.md."""
    return TABLE.markdown()
