"""The settings of a server: from flags, the environment or a file, in this precedence.

    --session-ms 5s          a flag
    COMET_SESSION_MS=5s      the environment
    session_ms = "5s"        a line of the TOML file that --config, or a variable, names
    3s                       the default

A `Table` lists a server's settings: its options on the command line, the parsing of all values and the documentation
page come from it. A secret has no flag, because others on the machine can read flags, and its value appears in no
message. For the broker and the gateway; a name's suffix is its unit, which decides how the value is parsed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.processes.logs import LOG_FORMATS
from comet.units import format_value, parse_bytes, parse_duration_ms, parse_number

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_CHOICES: Final = {"level": LOG_LEVELS, "log format": LOG_FORMATS, "switch": ("yes", "no")}
_SWITCH: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_METAVAR: Final = {
    "text": "TEXT",
    "path": "PATH",
    "addresses": "HOST:PORT,...",
    "words": "NAME,...",
    "number": "N",
    "bytes": "SIZE",
    "duration": "TIME",
    "seconds": "TIME",
    "value": "VALUE",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A row: one setting.

    `kind` says how text becomes a value: text, path, addresses, words, number, bytes, duration (in ms), seconds,
    level, log format, switch, or value, parsed by `parse` and formatted by `format`.
    """

    name: str
    kind: str
    about: str
    low: int = 0
    high: int = 0
    secret: bool = False
    default: object = None
    parse: Callable[[str], Any] | None = None
    format: Callable[[Any], str] | None = None
    prefix: str = "COMET_"
    words: tuple[str, ...] = ()  # that it takes, if `kind` leaves them open
    file_only: bool = False  # neither a flag nor a variable, so that it stands where the next operator reads it

    @property
    def variable(self) -> str:
        return "" if self.file_only else f"{self.prefix}{self.name.upper()}"

    @property
    def flag(self) -> str:
        return "" if self.secret or self.file_only else "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; empty if there are others."""
        return self.words or _CHOICES.get(self.kind, ())

    @property
    def metavar(self) -> str:
        """Its value, in the help of its flag."""
        return "|".join(self.choices) or _METAVAR[self.kind]

    @property
    def shown_default(self) -> str:
        """The default as text, with its unit."""
        if self.default is None or self.default in ("", ()):
            return ""
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        if isinstance(self.default, tuple) and self.kind == "words":
            return ",".join(self.default)
        if isinstance(self.default, float):
            return f"{self.default:g}s"
        if self.format is not None:
            return self.format(self.default)
        return format_value(self.unit, self.default) if isinstance(self.default, int) else str(self.default)

    @property
    def unit(self) -> str:
        """Of its number: ms, bytes, or empty."""
        return {"duration": "ms", "seconds": "ms", "bytes": "bytes"}.get(self.kind, "")

    def read(self, value: object) -> Any:
        """Parses a value: text, or a value from TOML. Raises InvalidArgument."""
        match self.kind:
            case "addresses" | "words":
                return _listed(value, self.kind)
            case "switch":
                return _switch(self.name, value)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise InvalidArgument(f"{self.name} takes one value, not a {type(value).__name__}")
        text = str(value).strip()
        match self.kind:
            case "value":
                assert self.parse is not None
                return self.parse(text)
            case "number":
                return self._within(parse_number(self.name, text))
            case "bytes":
                return self._within(parse_bytes(text))
            case "duration":
                return self._within(parse_duration_ms(text))
            case "seconds":  # without a unit, the suffix of the name is the unit
                return (
                    self._within(parse_duration_ms(f"{text}s" if text.replace(".", "", 1).isdecimal() else text)) / 1000
                )
            case "path":
                return Path(text).expanduser() if text else None
            case "level" | "log format":
                if text not in self.choices:
                    raise InvalidArgument(f"{self.name} must be one of {', '.join(self.choices)}, not {text!r}")
        return text

    def _within(self, number: int) -> int:
        if not self.low <= number <= self.high:
            low, high = (format_value(self.unit, bound) for bound in (self.low, self.high))
            raise InvalidArgument(f"{self.name} must be between {low} and {high}")
        return number


class Table:
    """The settings of one server."""

    def __init__(self, rows: Sequence[Setting], *, config_variable: str) -> None:
        self.rows = tuple(rows)
        self.by_name = {row.name: row for row in rows}
        self.config_variable = config_variable
        assert len(self.by_name) == len(self.rows)

    def merged(self, flags: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
        """Merges flags (by setting name; None: not given), environment and file into the values that were given.
        Raises InvalidArgument, naming the source of the invalid value."""
        values: dict[str, Any] = {}
        path = flags.get("config") or environ.get(self.config_variable)
        given = self._from_file(Path(path).expanduser()) if path else []
        given += [(row, row.variable, environ[row.variable]) for row in self.rows if row.variable in environ]
        given += [(row, row.flag, flags[row.name]) for row in self.rows if flags.get(row.name) is not None]
        for row, where, value in given:
            try:
                values[row.name] = row.read(value)
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}: {error.message}{_kubernetes(where, value)}") from None
        return values

    def _from_file(self, path: Path) -> list[tuple[Setting, str, object]]:
        try:
            table = tomllib.loads(path.read_text())
        except OSError as error:
            raise InvalidArgument(f"cannot read the settings file {path}: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            # The parser's message names line and column, and never a value.
            raise InvalidArgument(f"{path} is not valid TOML: {error}") from None
        for name in table:
            if name not in self.by_name:
                near = get_close_matches(name.replace("-", "_"), self.by_name, 1)
                advice = f"did you mean {near[0]}?" if near else f"use one of {', '.join(self.by_name)}"
                raise InvalidArgument(f"{path}: unknown setting {name!r}; {advice}")
        return [(self.by_name[name], f"{path}", value) for name, value in table.items()]

    def cells(self) -> list[list[str]]:
        """The rows as text: setting, flag, environment, default, description."""
        return [[row.name, row.flag, row.variable, row.shown_default, row.about] for row in self.rows]

    def markdown(self) -> str:
        """The table in Markdown, as the page for operators shows it."""
        lines = ["| setting | flag | environment | default | |", "|---|---|---|---|---|"]
        for name, flag, variable, default, about in self.cells():
            none = "none: a secret" if variable else "none"
            cells = [f"`{name}`", f"`{flag}`" if flag else none, f"`{variable}`" if variable else "none: in the file"]
            row = [*cells, default, about]
            lines.append("| " + " | ".join(row) + " |")
        return "\n".join(lines)


def _listed(value: object, kind: str) -> tuple[str, ...]:
    """`a,b`, or a list of them in the file. Addresses are host:port."""
    shape = "host:port,host:port" if kind == "addresses" else "name,name"
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidArgument(f"{kind} are written {shape}, or as a list of strings in the file")
    found = tuple(word.strip() for word in words if word.strip())
    for address in found if kind == "addresses" else ():
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdecimal():
            raise InvalidArgument(f"{address!r} is not a host:port; use the form etcd-1:2379")
    return found


def _switch(name: str, value: object) -> bool:
    found = _SWITCH.get(str(value).strip().lower()) if isinstance(value, (str, int)) else None
    if found is None:
        raise InvalidArgument(f"{name} takes yes or no, not {value!r}")
    return found


def _kubernetes(where: str, value: object) -> str:
    """For a service called `comet` Kubernetes sets COMET_PORT to an address, which is not a setting."""
    found = where.startswith("COMET_") and str(value).startswith("tcp://")
    service = "-".join(where.lower().split("_")[:-1])
    return (
        f"; Kubernetes set it for a service called {service}: set enableServiceLinks: false in the pod" if found else ""
    )
