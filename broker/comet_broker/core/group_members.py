"""The members of a group: a member's claim when it joins, its state, and its view of its assignment.

Pure; part of core.groups.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from comet.errors import InvalidArgument
from comet.patterns import compiled
from comet_broker import limits
from comet_broker.core.assignment import STICKY, STRATEGIES
from comet_broker.core.cluster import PartitionId

CONSUMER: Final = 1  # as GroupKind
SHARED: Final = 2

_INSTANCE: Final = re.compile(rf"[A-Za-z0-9._:/@-]{{0,{limits.INSTANCE_BYTES_MAX}}}")


@dataclass(frozen=True, slots=True)
class Claim:
    """The fields of a member's join request."""

    member: str = ""
    instance: str = ""
    client: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    kind: int = CONSUMER
    session_ms: int = 10_000
    release_ms: int = 60_000
    assignment: str = STICKY
    rack: str = ""


class View(NamedTuple):
    """A member's assignment: its partitions, each since a generation, and those of them that it is to release."""

    owned: Mapping[PartitionId, int]
    release: frozenset[PartitionId]


@dataclass(slots=True)
class Member:
    id: str
    instance: str
    client: str
    topics: frozenset[str]
    pattern: str
    session_s: float
    release_s: float
    heard: float
    fenced: tuple[str, ...] = ()
    assignment: str = STICKY
    rack: str = ""
    releasing: dict[PartitionId, float] = field(default_factory=dict)  # since when it is to release them
    notified: View | None = None  # None: it has not been notified yet


def check(claim: Claim) -> None:
    if claim.kind not in {CONSUMER, SHARED}:
        raise InvalidArgument(f"{claim.kind} is not a kind of group: use {CONSUMER} or {SHARED}")
    if not claim.topics and not claim.pattern:
        raise InvalidArgument("a member subscribes to topics, by name or by a pattern")
    if claim.pattern:
        compiled(claim.pattern)
    if not limits.SESSION_MS_MIN <= claim.session_ms <= limits.SESSION_MS_MAX:
        raise InvalidArgument(
            f"a session timeout is from {limits.SESSION_MS_MIN} to {limits.SESSION_MS_MAX} ms, not {claim.session_ms}"
        )
    if not limits.SESSION_MS_MIN <= claim.release_ms <= limits.RELEASE_MS_MAX:
        raise InvalidArgument(
            f"a release timeout is from {limits.SESSION_MS_MIN} to {limits.RELEASE_MS_MAX} ms, not {claim.release_ms}"
        )
    if claim.assignment not in STRATEGIES:
        raise InvalidArgument(f"unknown assignment {claim.assignment!r}: use {', '.join(STRATEGIES)}")
    if len(claim.rack) > limits.RACK_CHARS_MAX:
        raise InvalidArgument(f"a rack has at most {limits.RACK_CHARS_MAX} characters, not {len(claim.rack)}")
    if not _INSTANCE.fullmatch(claim.instance):
        raise InvalidArgument(
            f"an instance id has at most {limits.INSTANCE_BYTES_MAX} characters: letters, digits and any of '._:/@-'"
        )


def size_of(topics: Collection[str], pattern: str) -> int:
    return sum(map(len, topics)) + 3 * len(topics) + 2 * len(pattern.encode())
