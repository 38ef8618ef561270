"""Market calendars as the metadata store has them: one value each, under its name. Pure."""

from __future__ import annotations

import msgspec

from comet_broker.core.cluster import CALENDARS, Stored


class StoredBreak(msgspec.Struct, frozen=True, array_like=True):
    start_us: int
    end_us: int


class StoredSession(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    date: str
    open_us: int
    close_us: int
    breaks: tuple[StoredBreak, ...] = ()


class StoredCalendar(Stored, frozen=True):
    """A calendar without its name, which is its key, and its version, which is the key's mod_revision."""

    zone: str
    known_until: str
    sessions: tuple[StoredSession, ...]
    source: str = ""
    author: str = ""
    set_us: int = 0


def calendar_key(name: str) -> str:
    return f"{CALENDARS}{name}"
