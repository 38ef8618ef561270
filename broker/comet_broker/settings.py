"""What a broker is told, and the three ways to tell it: a flag, the environment, a file. In this precedence.

    --session-ms 5s          a flag
    COMET_SESSION_MS=5s      the environment
    session_ms = "5s"        a line of the TOML file that --config or COMET_CONFIG names
    3s                       else the default, which stands in BrokerConfig and TopicConfig

SETTINGS is the one table of them: the flags, the reading and the page for operators come from it. A secret has no
flag, because others on the machine can read those, and its value appears in no message.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from comet._units import format_setting, parse_duration_ms, parse_number, parse_setting
from comet.errors import InvalidArgument
from comet.types import NO_LIMIT, REPLICAS_MAX, Flush, TopicConfig
from comet_broker.config import BrokerConfig

CONFIG_VARIABLE: Final = "COMET_CONFIG"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_HOUR_MS: Final = 3_600_000
_TOPIC: Final = "topic_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. `kind` says how text becomes a value: text, path, addresses, number, duration, level, topic."""

    name: str
    kind: str
    about: str
    low: int = 0
    high: int = 0
    secret: bool = False

    @property
    def variable(self) -> str:
        return f"COMET_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return "" if self.secret else "--" + self.name.replace("_", "-")

    @property
    def shown_default(self) -> str:
        """The default as a person would write it."""
        default = _default(self.name)
        return "" if default in ("", (), None) else format_setting(self.name, default)

    def read(self, value: object) -> Any:
        """The value of what somebody wrote: text, or what TOML made of it. Raises InvalidArgument."""
        if self.kind == "addresses":
            return _addresses(value)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise InvalidArgument(f"{self.name} takes one value, not a {type(value).__name__}")
        text = str(value).strip()
        match self.kind:
            case "topic":
                if value == NO_LIMIT and not self.name.startswith(_TOPIC + "retention"):
                    raise InvalidArgument(f"{self.name} must not be negative")
                return parse_setting(self.name.removeprefix(_TOPIC), text)
            case "number" | "duration":
                return self._within(parse_number(self.name, text) if self.kind == "number" else parse_duration_ms(text))
            case "path":
                return Path(text).expanduser() if text else None
            case "level":
                if text not in LOG_LEVELS:
                    raise InvalidArgument(f"{self.name} must be one of {', '.join(LOG_LEVELS)}, not {text!r}")
        return text

    def _within(self, number: int) -> int:
        if not self.low <= number <= self.high:
            low, high = (format_setting(self.name, bound) for bound in (self.low, self.high))
            raise InvalidArgument(f"{self.name} must lie between {low} and {high}")
        return number


def _addresses(value: object) -> tuple[str, ...]:
    """`host:port,host:port`, or a list of them in the file."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidArgument("addresses are written host:port,host:port, or as a list of strings in the file")
    found = tuple(word.strip() for word in words if word.strip())
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdecimal():
            raise InvalidArgument(f"{address!r} is no host:port; give just that, e.g. etcd-1:2379")
    return found


SETTINGS: Final = (
    Setting("id", "number", "Which broker of its cluster it is. With etcd it must be given.", 1, (1 << 31) - 1),
    Setting("data", "path", "The folder that holds everything the broker keeps."),
    Setting("host", "text", "The address to listen on; 0.0.0.0 for all."),
    Setting("port", "number", "The port to listen on; 0 picks a free one.", 0, 65535),
    Setting("advertised_host", "text", "What others are told to connect to, where it differs from `host`."),
    Setting("advertised_port", "number", "And to which port of it; 0 for `port`.", 0, 65535),
    Setting("rack", "text", "Where the broker stands; the replicas of a partition are spread over racks."),
    Setting("etcd", "addresses", "The members of etcd. Without it the broker is alone."),
    Setting("etcd_user", "text", "The user that etcd knows the broker by."),
    Setting("etcd_password", "text", "Its password.", secret=True),
    Setting("etcd_ca", "path", "Certificates (PEM) that etcd's is checked against: makes the connection TLS."),
    Setting("etcd_cert", "path", "The broker's own certificate for etcd."),
    Setting("etcd_key", "path", "The key of that certificate."),
    Setting("cluster", "text", "The cluster's name; several clusters can share one etcd."),
    Setting("session_ms", "duration", "A broker that etcd has not heard of for so long is dead.", 1_000, _HOUR_MS),
    Setting("replica_lag_ms", "duration", "A follower that is behind for so long is no longer in sync.", 100, _HOUR_MS),
    Setting("default_replicas", "number", "Replicas of a topic that is made without saying how many.", 1, REPLICAS_MAX),
    Setting("rebalance_ms", "duration", "How long all must be well before leadership goes back.", 100, _HOUR_MS),
    Setting("retention_check_ms", "duration", "How often old records are looked for.", 10, _HOUR_MS),
    Setting("drain_grace_ms", "duration", "How long a stopping broker waits for clients to leave.", 0, _HOUR_MS),
    Setting("log_level", "level", "What is logged to stderr: debug, info, warning or error."),
    *(
        Setting(_TOPIC + name, "topic", f"The {name} of a topic that is made without saying.")
        for name in TopicConfig.names()
        if name not in ("min_insync", "consistency")  # these belong to one topic and follow its replicas
    ),
)  # fmt: skip
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def _default(name: str) -> object:
    if name.startswith(_TOPIC):
        return getattr(TopicConfig(), name.removeprefix(_TOPIC))
    if name in ("data", "log_level"):
        return {"data": "comet-data", "log_level": "warning"}[name]
    field = {"id": "broker_id"}.get(name, name)
    return next(f.default for f in fields(BrokerConfig) if f.name == field)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a broker was told, put together."""

    config: BrokerConfig
    log_level: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting that may have one, and --config. What is absent stays None."""
    parser.add_argument("--config", metavar="FILE", help="Settings as TOML, one name = value a line.")
    for setting in SETTINGS:
        if setting.flag:
            default = f" Default: {setting.shown_default}." if setting.shown_default else ""
            parser.add_argument(
                setting.flag, dest=setting.name, metavar=_METAVAR[setting.kind], help=setting.about + default
            )


_METAVAR: Final = {
    "text": "TEXT",
    "path": "PATH",
    "addresses": "HOST:PORT,...",
    "number": "N",
    "duration": "TIME",
    "level": "LEVEL",
    "topic": "VALUE",
}


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Loaded:
    """Puts flags (by setting name; None: not given), environment and file together. Raises InvalidArgument, naming
    where the trouble stands."""
    values: dict[str, Any] = {}
    path = flags.get("config") or environ.get(CONFIG_VARIABLE)
    told = _from_file(Path(path).expanduser()) if path else []
    told += [(one, one.variable, environ[one.variable]) for one in SETTINGS if one.variable in environ]
    told += [(one, one.flag, flags[one.name]) for one in SETTINGS if flags.get(one.name) is not None]
    for setting, where, value in told:
        try:
            values[setting.name] = setting.read(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}: {error.message}{_kubernetes(where, value)}") from None
    return Loaded(_config(values), values.get("log_level", _default("log_level")))


def _from_file(path: Path) -> list[tuple[Setting, str, object]]:
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidArgument(f"cannot read the settings file {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # Its message names line and column, and never a value.
        raise InvalidArgument(f"{path} is no TOML: {error}") from None
    for name in table:
        if name not in BY_NAME:
            near = get_close_matches(name.replace("-", "_"), BY_NAME, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(BY_NAME)}"
            raise InvalidArgument(f"{path}: there is no setting {name!r}; {advice}")
    return [(BY_NAME[name], f"{path}", value) for name, value in table.items()]


def _kubernetes(where: str, value: object) -> str:
    """For a service called `comet` Kubernetes sets COMET_PORT to an address, which helps nobody."""
    found = where.startswith("COMET_") and str(value).startswith("tcp://")
    return "; Kubernetes set it for a service called comet: say enableServiceLinks: false in the pod" if found else ""


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


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, environ: Mapping[str, str]) -> Loaded:
    """Reads a command line that has the flags of `add_flags`."""
    return load(vars(parser.parse_args(arguments)), environ)


def rows() -> list[list[str]]:
    """The table for people: setting, flag, environment, default, what it is."""
    return [
        [setting.name, setting.flag, setting.variable, setting.shown_default, setting.about] for setting in SETTINGS
    ]


def markdown() -> str:
    """The table as docs/operating.md shows it."""
    lines = ["| setting | flag | environment | default | |", "|---|---|---|---|---|"]
    for name, flag, variable, default, about in rows():
        cells = [f"`{name}`", f"`{flag}`" if flag else "none: a secret", f"`{variable}`", default, about]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
