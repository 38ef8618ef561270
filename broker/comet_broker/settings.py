"""What a broker is told: its table of settings, for flags, environment and file (see comet.settings)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.settings import Setting, Table
from comet.types import NO_LIMIT, REPLICAS_MAX, Flush, TopicConfig
from comet.units import parse_setting
from comet_broker.config import BrokerConfig

CONFIG_VARIABLE: Final = "COMET_CONFIG"
_HOUR_MS: Final = 3_600_000
_TOPIC: Final = "topic_"


def _default(name: str) -> object:
    if name.startswith(_TOPIC):
        return getattr(TopicConfig(), name.removeprefix(_TOPIC))
    if name in ("data", "log_level"):
        return {"data": "comet-data", "log_level": "warning"}[name]
    field = {"id": "broker_id"}.get(name, name)
    return next(f.default for f in fields(BrokerConfig) if f.name == field)


def _row(name: str, kind: str, about: str, low: int = 0, high: int = 0, *, secret: bool = False) -> Setting:
    return Setting(name, kind, about, low, high, secret, _default(name))


def _topic_row(name: str) -> Setting:
    about = f"The {name} of a topic that is made without saying."
    return Setting(_TOPIC + name, "value", about, default=_default(_TOPIC + name), parse=partial(_topic_value, name))


def _topic_value(name: str, text: str) -> int | str:
    if text == str(NO_LIMIT) and not name.startswith("retention"):
        raise InvalidArgument(f"{_TOPIC}{name} must not be negative")
    return parse_setting(name, text)


SETTINGS: Final = (
    _row("id", "number", "Which broker of its cluster it is. With etcd it must be given.", 1, (1 << 31) - 1),
    _row("data", "path", "The folder that holds everything the broker keeps."),
    _row("host", "text", "The address to listen on; 0.0.0.0 for all."),
    _row("port", "number", "The port to listen on; 0 picks a free one.", 0, 65535),
    _row("advertised_host", "text", "What others are told to connect to, where it differs from `host`."),
    _row("advertised_port", "number", "And to which port of it; 0 for `port`.", 0, 65535),
    _row("metrics_port", "number", "Where /metrics, /livez and /readyz answer, over HTTP; 0 for nowhere.", 0, 65535),
    _row("rack", "text", "Where the broker stands; the replicas of a partition are spread over racks."),
    _row("etcd", "addresses", "The members of etcd. Without it the broker is alone."),
    _row("etcd_user", "text", "The user that etcd knows the broker by."),
    _row("etcd_password", "text", "Its password.", secret=True),
    _row("etcd_ca", "path", "Certificates (PEM) that etcd's is checked against: makes the connection TLS."),
    _row("etcd_cert", "path", "The broker's own certificate for etcd."),
    _row("etcd_key", "path", "The key of that certificate."),
    _row("cluster", "text", "The cluster's name; several clusters can share one etcd."),
    _row("session_ms", "duration", "A broker that etcd has not heard of for so long is dead.", 1_000, _HOUR_MS),
    _row("replica_lag_ms", "duration", "A follower that is behind for so long is no longer in sync.", 100, _HOUR_MS),
    _row("default_replicas", "number", "Replicas of a topic that is made without saying how many.", 1, REPLICAS_MAX),
    _row("rebalance_ms", "duration", "How long all must be well before leadership goes back.", 100, _HOUR_MS),
    _row("retention_check_ms", "duration", "How often old records are looked for.", 10, _HOUR_MS),
    _row("drain_grace_ms", "duration", "How long a stopping broker waits for clients to leave.", 0, _HOUR_MS),
    _row("log_level", "level", "What is logged to stderr: debug, info, warning or error."),
    *(
        _topic_row(name)
        for name in TopicConfig.names()
        if name not in ("min_insync", "consistency")  # these belong to one topic and follow its replicas
    ),
)  # fmt: skip
TABLE: Final = Table(SETTINGS, config_variable=CONFIG_VARIABLE)
BY_NAME: Final = TABLE.by_name


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """What a broker was told, put together."""

    config: BrokerConfig
    log_level: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting that may have one, and --config. What is absent stays None."""
    TABLE.add_flags(parser)


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> LoadedSettings:
    """Puts flags (by setting name; None: not given), environment and file together. Raises InvalidArgument, naming
    where the trouble stands."""
    values = TABLE.merged(flags, environ)
    return LoadedSettings(_config(values), values.get("log_level", _default("log_level")))


def _config(values: Mapping[str, Any]) -> BrokerConfig:
    if values.get("etcd") and "id" not in values:
        raise InvalidArgument("with etcd every broker needs a number of its own: give --id N, COMET_ID or id = N")
    if bool(values.get("etcd_cert")) != bool(values.get("etcd_key")):
        raise InvalidArgument("etcd_cert and etcd_key belong together: give both or neither")
    topic = {name.removeprefix(_TOPIC): value for name, value in values.items() if name.startswith(_TOPIC)}
    if "flush" in topic:
        topic["flush"] = Flush(topic["flush"])
    plain = {
        {"id": "broker_id"}.get(name, name): value
        for name, value in values.items()
        if not name.startswith(_TOPIC) and name != "log_level"
    }
    return BrokerConfig(**{"data": Path(str(_default("data"))), **plain}, topic_defaults=TopicConfig(**topic))


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, environ: Mapping[str, str]
) -> LoadedSettings:
    """Reads a command line that has the flags of `add_flags`."""
    return load(vars(parser.parse_args(arguments)), environ)


def described(config: BrokerConfig) -> list[dict[str, str]]:
    """What a broker was told, as it tells it to others: every row but the log's level, and of a secret only whether
    there is one."""
    rows = []
    for row in SETTINGS:
        if row.name == "log_level":
            continue
        default = _default(row.name)
        if row.name.startswith(_TOPIC):
            value: object = getattr(config.topic_defaults, row.name.removeprefix(_TOPIC))
        else:
            value = getattr(config, {"id": "broker_id"}.get(row.name, row.name))
        source = "default" if _text(value) == _text(default) else "given"
        shown = ("set" if value else "") if row.secret else _text(value)
        rows.append({"name": row.name, "value": shown, "default": _text(default), "source": source, "about": row.about})
    return rows


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value.value if isinstance(value, Flush) else value)


def markdown() -> str:
    """The table as docs/operating.md shows it."""
    return TABLE.markdown()
