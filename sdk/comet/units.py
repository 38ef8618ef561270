"""Parses and formats durations, sizes and numbers, as on a command line and in a file, and makes texts fit for a line.

Pure. Settings of topics, brokers and gateways are parsed here, so that `7d` means the same everywhere.
"""

from __future__ import annotations

import re
from typing import Final

from comet.errors import InvalidArgument

LINE_CHARACTERS_MAX: Final = 300  # of a text from another program

_NUMBER: Final = r"([0-9]+(?:\.[0-9]+)?)\s*"
_DURATION: Final = re.compile(_NUMBER + r"(ms|s|m|h|d|w)?")
_SIZE: Final = re.compile(_NUMBER + r"(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB|K|M|G|T)?")
_UNIT_MS: Final[dict[str, int]] = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
UNIT_BYTES: Final[dict[str, int]] = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("k", "M", "G", "T"), 1)},
    "KB": 1000,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
    # A bare letter has the meaning that it has in dd, ulimit and the JVM.
    **{prefix: 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}


def parse_duration_ms(text: str) -> int:
    """Milliseconds from `250`, `1500ms`, `1.5h`, `7d`.

    >>> parse_duration_ms("7d"), parse_duration_ms("250")
    (604800000, 250)
    """
    if match := _DURATION.fullmatch(text.strip()):
        return round(float(match[1]) * _UNIT_MS[match[2] or "ms"])
    raise InvalidArgument(f"invalid duration {text!r}: write e.g. 500ms, 30s, 15m, 12h, 7d, 2w")


def parse_bytes(text: str) -> int:
    """Bytes from `4096`, `64KiB`, `1.5GB`.

    >>> parse_bytes("1GiB"), parse_bytes("2kB")
    (1073741824, 2000)
    """
    if match := _SIZE.fullmatch(text.strip()):
        return round(float(match[1]) * UNIT_BYTES[match[2] or "B"])
    raise InvalidArgument(f"invalid size {text!r}: write e.g. 4096, 64KiB, 512MiB, 1.5GB")


def parse_number(name: str, text: str) -> int:
    """A whole number; digits may be grouped with `_` or `,`."""
    digits = text.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdecimal()):
        raise InvalidArgument(f"{name} takes a whole number, not {text!r}")
    return int(digits)


def parse_value(name: str, unit: str, text: str) -> int:
    """Parses a number in a unit: "ms", "bytes", or another one, which is a plain number. Errors name the setting.

    >>> parse_value("retention_ms", "ms", "7d"), parse_value("segment_bytes", "bytes", "1MiB")
    (604800000, 1048576)
    """
    match unit:
        case "ms":
            return parse_duration_ms(text)
        case "bytes":
            return parse_bytes(text)
    return parse_number(name, text)


def format_value(unit: str, value: int) -> str:
    """Formats a number so that `parse_value` parses it back.

    >>> format_value("ms", 604800000), format_value("bytes", 134217728), format_value("records", 5)
    ('7d', '128MiB', '5')
    """
    match unit:
        case "ms":
            return format_duration_ms(value)
        case "bytes":
            return format_exact_bytes(value)
    return str(value)


def format_duration_ms(duration_ms: int) -> str:
    """The duration in the largest unit without a fraction, so that it parses back to the same value."""
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % _UNIT_MS[unit] == 0:
            return f"{duration_ms // _UNIT_MS[unit]}{unit}"
    return f"{duration_ms}ms"


def format_exact_bytes(size: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % UNIT_BYTES[unit] == 0:
            return f"{size // UNIT_BYTES[unit]}{unit}"
    return f"{size}B"


def format_bytes(size: float) -> str:
    """A size as rounded text.

    >>> format_bytes(1536), format_bytes(0)
    ('1.5 KiB', '0 B')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= UNIT_BYTES[unit]:
            return f"{size / UNIT_BYTES[unit]:.1f} {unit}"
    return f"{size:.0f} B"


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "record"), count(1200, "record")
    ('1 record', '1,200 records')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def least(number: str, *, complete: bool) -> str:
    """A number that may be higher, as some brokers did not answer."""
    return number if complete else f"at least {number}"


def time_text(time_us: int, timespec: str = "seconds") -> str:
    """A time in UTC, as ISO 8601 has it.

    >>> time_text(1_795_825_657_858_193), time_text(1_795_825_657_858_193, "microseconds")
    ('2026-11-28T00:27:37+00:00', '2026-11-28T00:27:37.858193+00:00')
    """
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec=timespec)


def one_line(text: str) -> str:
    """A text fit for a line on a terminal: without control characters, and of limited length.

    >>> one_line("prices" + chr(10) + "moved"), one_line(chr(27) + "[31mred")
    ('prices moved', ' [31mred')
    """
    return "".join(one if one.isprintable() else " " for one in text[:LINE_CHARACTERS_MAX])
