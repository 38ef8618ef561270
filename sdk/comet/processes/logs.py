"""The log of a process on stderr: lines for people, or one JSON object for each event.

    text   2026-11-30 15:00:15,123 WARNING comet_broker.partitions.maintenance: retention of quotes/3: the disk is full
    json   {"ts":"2026-11-30T15:00:15.123Z","level":"warning","logger":"comet_broker.partitions.maintenance","msg":
            "retention of quotes/3: the disk is full","broker":1,"topic":"quotes","partition":3,"code":"DISK_FULL"}

A field comes from the first of these that has its name: `extra=` of the call; an argument of the message with
`log_fields`, such as a partition or an error; the request being answered (`log_context`); the process.

Names and texts of clients cannot break a line in either format: control characters are escaped, and lines of a
traceback are indented, or in JSON a field. A line of JSON has at most LINE_BYTES_MAX bytes.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

from comet.errors import InvalidArgument

LOG_FORMATS: Final = ("text", "json")
LOG_FORMAT_VARIABLE: Final = "COMET_LOG_FORMAT"
SERVER_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PROGRAM_TEXT: Final = "%(name)s: %(message)s"

LINE_BYTES_MAX: Final = 16_384  # container runtimes split longer ones
MESSAGE_BYTES_MAX: Final = 8_192
FIELD_BYTES_MAX: Final = 1_024
NAME_CHARS_MAX: Final = 64
_ROOM_BYTES_MIN: Final = 32  # of a value, so that every number fits
_EXACT: Final = 1 << 53  # integers below it are exact in every reader of JSON
_CUT: Final = "…"
_LEFT_OUT: Final = "fields_left_out"
_BEGINNING: Final = '{"ts":"'
_AUDIT: Final = ".audit"  # loggers whose messages are JSON already, with fields of their own

_OF_RECORDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_IGNORED: Final = _OF_RECORDS | {"color_message"}  # uvicorn's message again, coloured

_request_fields: ContextVar[dict[str, object] | None] = ContextVar("comet_log_fields", default=None)


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Adds fields to all that is logged inside, also by tasks that are started there. Such a task may live longer, as
    a feed does for its next subscribers: its lines lose the fields as the context ends."""
    known = {name: value for name, value in fields.items() if value}
    token = _request_fields.set(known)
    try:
        yield
    finally:
        known.clear()
        _request_fields.reset(token)


def log_format_of(environ: Mapping[str, str]) -> str:
    """The format that the environment asks for. Raises InvalidArgument."""
    found = environ.get(LOG_FORMAT_VARIABLE) or LOG_FORMATS[0]
    if found not in LOG_FORMATS:
        raise InvalidArgument(f"{LOG_FORMAT_VARIABLE} must be one of {', '.join(LOG_FORMATS)}, not {found!r}")
    return found


def set_up_logging(level: str, log_format: str, text: str = SERVER_TEXT, **fields: object) -> None:
    """Logs to stderr from `level` on. `text` is the style of lines for people; `fields` are in every line of JSON.
    A later call replaces an earlier one. An application that embeds Comet and has set up logging keeps its own."""
    root = logging.getLogger()
    handler = next((one for one in root.handlers if isinstance(one, _Stderr)), None)
    if handler is None:
        if root.handlers:
            return
        handler = _Stderr(sys.stderr)
        root.addHandler(handler)
    root.setLevel(level.upper())
    in_json = log_format == "json"
    handler.setFormatter(JsonLines(fields) if in_json else TextLines(text))
    logging.captureWarnings(in_json)
    if in_json:
        sys.excepthook = _report
        threading.excepthook = lambda found: _report(found.exc_type, found.exc_value, found.exc_traceback)
        sys.unraisablehook = lambda found: _report(found.exc_type, found.exc_value, found.exc_traceback)


def logs_json() -> bool:
    """Whether this process logs in JSON."""
    return any(
        isinstance(one, _Stderr) and isinstance(one.formatter, JsonLines) for one in logging.getLogger().handlers
    )


def message_in(line: str) -> str:
    """The message of a line of JSON, to show the log of a child to people; another line as it is."""
    if not line.startswith(_BEGINNING):
        return line
    import json

    try:
        return str(json.loads(line)["msg"])
    except (ValueError, KeyError):
        return line


def printable(text: str) -> str:
    """The text on one line: what is not printable, such as control characters, is escaped as in JSON."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    import json  # commands that print no such name start without it

    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


class _Stderr(logging.StreamHandler[Any]):
    """The handler that `set_up_logging` adds."""


def _report(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None, /, *_: object
) -> None:
    if error is not None and not issubclass(kind, (KeyboardInterrupt, SystemExit)):
        logging.getLogger("comet").critical("unexpected error", exc_info=(kind, error, traceback))


class TextLines(logging.Formatter):
    """Lines for people. What a traceback or stack adds is indented: only an event begins at the margin."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = _message(record)
        record.asctime = self.formatTime(record)
        line = printable(self.formatMessage(record))
        request_id = (_request_fields.get() or {}).get("request_id")
        if isinstance(request_id, str) and request_id not in line and not record.name.endswith(_AUDIT):
            line += f" [{request_id}]"
        more = "\n".join(filter(None, (_traceback(self, record), record.stack_info)))
        return "\n  ".join([line, *(printable(one) for one in more.split("\n"))]) if more else line


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _message(record),
        }
        last = {"exception": _traceback(self, record), "stack": record.stack_info or ""}
        taken = line.keys() | last.keys() | {_LEFT_OUT}
        for given, value in _fields_of(record, self._fields).items():
            name = given[:NAME_CHARS_MAX]
            while name in taken or name in line:
                name += "_"
            line[name] = value
        return _encoded_line(line, {name: text for name, text in last.items() if text})


def _encoded_line(line: Mapping[str, object], last: Mapping[str, str]) -> str:
    """Long values are cut; the exception and the stack get the room that is left, and keep their end."""
    import json

    parts: list[str] = []
    room = LINE_BYTES_MAX - len(f'{{"{_LEFT_OUT}":100000}}\n')
    left_out = 0
    for name, value in (*line.items(), *last.items()):
        key = f"{json.dumps(_scalar(name))}:"
        bytes_max = room - len(key) - 1
        if name not in last:
            bytes_max = min(bytes_max, MESSAGE_BYTES_MAX if name == "msg" else FIELD_BYTES_MAX)
        if bytes_max < _ROOM_BYTES_MIN:
            left_out += 1
            continue
        parts.append(key + _encoded(value, bytes_max, keep_end=name in last))
        room -= len(parts[-1]) + 1
    if left_out:
        parts.append(f'"{_LEFT_OUT}":{left_out}')
    return f"{{{','.join(parts)}}}"


def _encoded(value: object, bytes_max: int, *, keep_end: bool = False) -> str:
    """A value as JSON in ASCII, of at most `bytes_max` bytes."""
    import json

    value = _scalar(value)
    if not isinstance(value, str):
        return json.dumps(value)
    whole, shown = value, value[-bytes_max:] if keep_end else value[:bytes_max]
    while True:
        cut = shown if len(shown) == len(whole) else _CUT + shown if keep_end else shown + _CUT
        found = json.dumps(cut)
        if len(found) <= bytes_max:
            return found
        chars = min(len(shown) - 1, len(shown) * bytes_max // len(found))
        shown = shown[len(shown) - chars :] if keep_end else shown[:chars]


def _scalar(value: object) -> str | int | float | bool | None:
    """A value that JSON has: others become text. Lone surrogates are escaped, since strict readers refuse them."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    return _text(value).encode("utf-8", "backslashreplace").decode()


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a value that cannot be shown must not cost the line
        return f"<{type(value).__name__}>"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit, or cannot be shown
        arguments = record.args if isinstance(record.args, tuple) else (record.args,)
        return " ".join(_text(one) for one in (record.msg, *arguments))


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return record.exc_text or ""
    try:
        return formatter.formatException(record.exc_info)
    except Exception:  # noqa: BLE001 - as above
        return _text(record.exc_info[1])


def _fields_of(record: logging.LogRecord, of_process: Mapping[str, object]) -> dict[str, object]:
    """The fields of a line by name, those of the process first."""
    found = {**of_process, **(_request_fields.get() or {})}
    for source in reversed(list(_sources(record))):
        found.update((name, value) for name, value in source.items() if isinstance(name, str))
    found.update((str(name), value) for name, value in record.__dict__.items() if name not in _IGNORED)
    return found


def _sources(record: logging.LogRecord) -> Iterator[Mapping[str, object]]:
    """The fields of the message's arguments, and of the error that is logged."""
    arguments: Iterable[object] = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    for argument in (*arguments, record.exc_info[1] if record.exc_info else None):
        if hasattr(type(argument), "log_fields"):
            fields: object = None
            with suppress(Exception):  # as above
                fields = getattr(argument, "log_fields", None)
            if isinstance(fields, Mapping):
                yield fields
