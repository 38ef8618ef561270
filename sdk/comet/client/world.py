"""The world of a client: its network, randomness and clock. Programs have the real one; simulations pass another, by
keywords that signatures do not list, or one for all clients that are made in a context."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Any, Final, NamedTuple, TypedDict

from comet.types import wall_clock_us
from comet.wire.transport import Connect


class Seams(TypedDict, total=False):
    """The parts of the world that a simulation replaces."""

    connect: Connect | None
    random: Random | None
    clock_us: Callable[[], int]


class World(NamedTuple):
    """What a client reaches beside its arguments."""

    connect: Connect | None = None  # None: TCP, or a Unix socket
    random: Random | None = None  # None: the system's
    clock_us: Callable[[], int] = wall_clock_us

    @classmethod
    def taken(cls, keywords: dict[str, Any]) -> World:
        """The world that keywords name, which are removed from them; else that of the context."""
        named = cls(**{name: keywords.pop(name) for name in cls._fields if name in keywords})
        return named if named.connect is not None else SURROUNDING.get() or named

    @classmethod
    def of(cls, client: object, seams: dict[str, Any]) -> World:
        """The world of a client. Raises TypeError for any other keyword."""
        given = dict(seams)
        world = cls.taken(given)
        for name in given:
            raise TypeError(f"{type(client).__name__} got an unexpected keyword argument {name!r}")
        return world


SURROUNDING: Final[ContextVar[World | None]] = ContextVar("comet_world", default=None)
