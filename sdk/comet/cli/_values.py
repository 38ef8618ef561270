"""Parses settings of the command line, and formats numbers. Units are defined in `comet.units`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from comet.errors import InvalidArgument
from comet.settings.topic import TOPIC_SETTINGS, TopicSetting


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Topic settings from `name=value` words; the name decides the unit.

    >>> parse_settings(["retention_ms=7d", "retention_bytes=none", "flush=always"])
    {'retention_ms': 604800000, 'retention_bytes': -1, 'flush': <Flush.ALWAYS: 'always'>}
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidArgument(f"invalid setting {pair!r}: use name=value, e.g. retention_ms=7d")
        row = setting_of(name)
        if row.name in settings:
            raise InvalidArgument(f"{row.name} is given twice")
        settings[row.name] = row.parse(value.strip())
    return settings


def setting_of(text: str) -> TopicSetting:
    """The topic setting of a name as it is typed. Raises InvalidArgument, with the name that is most like it."""
    name = text.strip().replace("-", "_")
    if name not in TOPIC_SETTINGS:
        near = "".join(f"; did you mean {found}?" for found in get_close_matches(name, TOPIC_SETTINGS, 1))
        raise InvalidArgument(f"unknown setting {name!r}{near or '; use ' + ', '.join(TOPIC_SETTINGS)}")
    return TOPIC_SETTINGS[name]


def format_rate(per_second: float) -> str:
    """A rate as rounded text.

    >>> format_rate(4_120_000), format_rate(912.4)
    ('4.12 M/s', '912 /s')
    """
    if per_second >= 1e6:
        return f"{per_second / 1e6:.2f} M/s"
    if per_second >= 1e4:
        return f"{per_second / 1e3:.1f} k/s"
    return f"{per_second:.0f} /s"


def format_age(seconds: float) -> str:
    """A duration as rounded text.

    >>> format_age(0.012), format_age(1.5), format_age(200), format_age(7_500), format_age(0)
    ('12 ms', '1.5 s', '3m 20s', '2h 5m', '0 ms')
    """
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def brokers_text(brokers: Sequence[int]) -> str:
    """Broker ids as `comet topic move --to` takes them."""
    return ",".join(map(str, brokers)) or "-"
