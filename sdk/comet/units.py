"""Parses and formats sizes, durations and topic settings, as on a command line and in a file.

Pure. The command line and the broker's settings are parsed here, so that `7d` means the same everywhere.
"""

from __future__ import annotations

import re
from typing import Final

from comet.errors import InvalidArgument
from comet.types import NO_LIMIT, Consistency, Flush

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
_UNLIMITED: Final = ("-1", "none", "unlimited", "forever")
# Settings that take one of a few words.
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "flush": tuple(policy.value for policy in Flush),
    "consistency": tuple(kind.value for kind in Consistency),
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


def parse_setting(name: str, text: str) -> int | str:
    """Parses one setting of a topic; the name's suffix is its unit.

    >>> parse_setting("retention_ms", "7d"), parse_setting("retention_bytes", "none"), parse_setting("flush", "os")
    (604800000, -1, 'os')
    """
    if name in _WORDS:
        if text not in _WORDS[name]:
            *most, last = _WORDS[name]
            raise InvalidArgument(f"{name} must be {', '.join(most)} or {last}, not {text!r}")
        return text
    if name.startswith("retention_") and text.lower() in _UNLIMITED:
        return NO_LIMIT
    if name.endswith("_ms"):
        return parse_duration_ms(text)
    if "bytes" in name:
        return parse_bytes(text)
    return parse_number(name, text)


def format_setting(name: str, value: object) -> str:
    """Formats a setting so that `parse_setting` parses it back.

    >>> format_setting("retention_ms", 604800000), format_setting("segment_bytes", 134217728)
    ('7d', '128MiB')
    """
    if isinstance(value, (Flush, Consistency)):
        return str(value.value)
    if not isinstance(value, int) or value < 0:
        return "none" if value == NO_LIMIT else str(value)
    if name.endswith("_ms"):
        return format_duration_ms(value)
    return format_exact_bytes(value) if "bytes" in name else str(value)


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
