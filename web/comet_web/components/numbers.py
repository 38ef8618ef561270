"""Numbers, sizes and times as pages write them. Pure. None is a dash, never 0."""

from __future__ import annotations

from datetime import UTC, datetime

from comet_web.document import UNKNOWN, Cell

_STEPS = ("", "k", "M", "G", "T", "P")
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
NO_LIMIT = "-1"
_EXACT = {
    "ms": (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)),
    "bytes": (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)),
}


def short(value: float) -> str:
    """Three significant digits: 0, 0.25, 12.3, 1.23 k, 45 M."""
    sign, size = ("-", -value) if value < 0 else ("", float(value))
    step = 0
    while size >= 999.5 and step < len(_STEPS) - 1:
        size /= 1000
        step += 1
    digits = 0 if size >= 99.95 or (step == 0 and size == int(size)) else 1 if size >= 9.995 else 2
    return f"{sign}{size:.{digits}f}{' ' if step else ''}{_STEPS[step]}"


def count(value: int | None, *, href: str = "", tone: str = "") -> Cell:
    """With every digit: 1,204,331."""
    return UNKNOWN if value is None else Cell(f"{value:,}", value, href=href, tone=tone)


def counted(number: int, noun: str) -> str:
    """1 record, 2,000 records."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rate(value: float | None, *, what: str = "", href: str = "") -> Cell:
    if value is None:
        return UNKNOWN
    return Cell(short(value), round(value, 3), title=f"{value:,.2f} {what}/s".replace(" /s", "/s"), href=href)


def size(value: float | None, *, href: str = "") -> Cell:
    if value is None:
        return UNKNOWN
    return Cell(size_text(value), value, title=f"{value:,.0f} bytes", href=href)


def size_text(value: float) -> str:
    step, left = 0, float(value)
    while abs(left) >= 999.5 and step < len(_BYTES) - 1:
        left /= 1000
        step += 1
    digits = 0 if step == 0 or abs(left) >= 99.95 else 1 if abs(left) >= 9.995 else 2
    return f"{left:.{digits}f} {_BYTES[step]}"


def duration_text(seconds: float) -> str:
    """Two units at most: 250 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 7 d."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    seconds = max(60, round(seconds))
    for unit, name, below, below_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            whole, rest = divmod(int(seconds), unit)
            left = rest // below
            return f"{whole} {name} {left} {below_name}" if left else f"{whole} {name}"
    raise AssertionError("every number of seconds has a unit")


def duration(seconds: float | None) -> Cell:
    return UNKNOWN if seconds is None else Cell(duration_text(seconds), round(seconds, 3), title=f"{seconds:,.3f} s")


def milliseconds(value: float | None) -> Cell:
    return UNKNOWN if value is None else Cell(f"{value:.1f}" if value < 99.95 else f"{value:.0f}", round(value, 3))


def moment_text(time_us: int) -> str:
    """2026-11-21 14:03:22.125 UTC. Timestamps of records that no calendar has stay numbers."""
    try:
        time = datetime.fromtimestamp(time_us / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} µs"
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d} UTC"


def moment(time_us: int | None) -> Cell:
    return UNKNOWN if not time_us else Cell(moment_text(time_us), time_us)


def ago(time_us: int | None, now_us: int) -> Cell:
    """Time since then in whole seconds; the moment on hover."""
    if not time_us:
        return UNKNOWN
    seconds = max(0, now_us - time_us) // 1_000_000
    text = _whole_text(seconds)
    return Cell(f"{text} ago" if seconds else "just now", time_us, title=moment_text(time_us))


LATE_US = 5_000_000  # that something may be due without being late


def until(time_us: int, now_us: int, *, slack_us: int = 0) -> Cell:
    """Time until then in whole seconds; the moment on hover. Late once it is over for longer than `slack_us`."""
    title = moment_text(time_us)
    seconds = (time_us - now_us) // 1_000_000
    if seconds > 0:
        return Cell(f"in {_whole_text(seconds)}", time_us, title=title)
    if now_us <= time_us + slack_us + LATE_US:
        return Cell("now", time_us, title=title)
    late = (now_us - time_us) // 1_000_000
    return Cell(f"late by {_whole_text(late)}", time_us, "warn", title)


def _whole_text(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else duration_text(seconds)


_SWITCHES = {"True": "yes", "False": "no"}


def exact_text(value: str, unit: str) -> str:
    """A setting's value in the largest unit without a fraction: 7 d, 128 MiB, none.

    >>> exact_text("604800000", "ms"), exact_text("1500", "ms"), exact_text("-1", "bytes"), exact_text("9092", "")
    ('7 d', '1500 ms', 'none', '9092')
    >>> exact_text("True", ""), exact_text("0", "bytes")  # a size of 0 is a word for something else, such as all
    ('yes', '0')
    """
    if value in _SWITCHES:
        return _SWITCHES[value]
    if value == "0" and unit == "bytes":
        return value
    steps = _EXACT.get(unit, ())
    if value == NO_LIMIT:
        return "none"
    if not steps or not value.isdecimal():
        return value
    number = int(value)
    name, size = next(((name, size) for name, size in steps if number and number % size == 0), steps[-1])
    return f"{number // size} {name}"
