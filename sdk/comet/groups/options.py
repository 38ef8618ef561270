"""The options of a group consumer, and the request by which a member joins its group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, get_args

from comet import limits, patterns
from comet.consumer.options import ReadingOptions, one_of
from comet.errors import InvalidArgument
from comet.types import AssignmentStrategy, TopicPartition, check_topic_name
from comet.v1 import groups_pb2 as groups_pb

# Called with the partitions concerned; an awaitable result is awaited.
OnPartitions = Callable[[list[TopicPartition]], Awaitable[None] | None]


@dataclass(frozen=True, kw_only=True)
class GroupOptions(ReadingOptions):
    """The options of a GroupConsumer: see there. Given as an object, or each by its name.

    >>> options = comet.GroupOptions(start="earliest", session_timeout_ms=20_000)
    >>> consumer = comet.GroupConsumer("localhost:9092", "quotes", group="engine", options=options, instance="a")
    """

    pattern: str = ""
    instance: str = ""
    session_timeout_ms: int = limits.SESSION_TIMEOUT_MS
    release_timeout_ms: int = 0
    commit_interval_ms: float = limits.COMMIT_INTERVAL_MS
    auto_commit: bool = True
    on_assigned: OnPartitions | None = None
    on_revoked: OnPartitions | None = None
    on_lost: OnPartitions | None = None
    assignment: AssignmentStrategy = "sticky"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("assignment", self.assignment, *get_args(AssignmentStrategy))
        if self.assignment == "rack" and not self.rack:
            raise InvalidArgument('assignment="rack" needs the member\'s rack: give rack="..."')
        check_member(self.pattern, self.session_timeout_ms)


def check_member(pattern: str, session_timeout_ms: int) -> None:
    """Checks the options of members of any group."""
    if pattern:
        patterns.compiled(pattern)
    limits.within(
        "session_timeout_ms", session_timeout_ms, limits.SESSION_TIMEOUT_MS_MIN, limits.SESSION_TIMEOUT_MS_MAX
    )


class MemberOptions(Protocol):
    """The options of members of any group."""

    @property
    def pattern(self) -> str: ...
    @property
    def session_timeout_ms(self) -> int: ...


def join_frame(
    group: str, topics: Sequence[str], options: MemberOptions, client: str, kind: groups_pb.GroupKind
) -> groups_pb.Join:  # fmt: skip
    """The Join request of a member. Raises InvalidArgument for a group or topics that a coordinator refuses."""
    if not topics and not options.pattern:
        raise InvalidArgument("no topics given: name topics, or give a pattern")
    return groups_pb.Join(
        group=check_group_name(group),
        topics=list(dict.fromkeys(map(check_topic_name, topics))),
        pattern=options.pattern,
        kind=kind,
        session_timeout_ms=options.session_timeout_ms,
        client=client,
    )


def check_group_name(group: str) -> str:
    """Checks a group's name: the rules are those of topic names."""
    try:
        return check_topic_name(group)
    except InvalidArgument as error:
        raise InvalidArgument(f"invalid group name; the rules for topics apply: {error.message}") from None
