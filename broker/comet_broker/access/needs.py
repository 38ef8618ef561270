"""The table of access: what each call and each frame of a client needs to be allowed. Pure.

A test fails for a call or frame without a row. Partitions are by handle; one that is unknown needs nothing, and the
handler of the frame reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias, cast

from comet.admin.acts import ACTS, Act
from comet.patterns import literal_start
from comet.v1 import groups_pb2 as groups
from comet_broker.access.client_access import Need
from comet_broker.core.rules import ALL, Kind, Operation
from comet_broker.core.transactions import GENERATED_PREFIX

CallNeeds: TypeAlias = Callable[[Any], Iterable[Need]]


class OfTopic(Protocol):
    """A partition."""

    @property
    def topic(self) -> str: ...


Partitions: TypeAlias = Mapping[int, OfTopic]
FrameNeeds: TypeAlias = Callable[[Any, Partitions], Iterable[Need]]


def nothing(*_: object) -> tuple[Need, ...]:
    return ()


def of_act(act: Act) -> CallNeeds:
    """By the row of an admin act. Its request has the `name` of the topic or group, or its `topic`."""
    if not act.needs:
        return nothing
    words = act.needs.split()
    operation, kind = cast(Operation, words[0]), cast(Kind, words[1])
    if kind == "cluster":
        return lambda _: ((operation, kind, ALL),)
    named = "name" if "name" in act.request.DESCRIPTOR.fields_by_name else "topic"
    return lambda request: ((operation, kind, getattr(request, named)),)


def _shared(request: Any, topics: Iterable[str], options: groups.ShareOptions) -> Iterator[Need]:
    """Of a member of a share group. The broker writes its dead letters."""
    yield "read", "group", request.group
    for topic in topics:
        yield "read", "topic", topic
    if options.dead_letter:
        yield "write", "topic", options.dead_letter


def _topics(handles: Iterable[int], partitions: Partitions) -> list[str]:
    return list(dict.fromkeys(partitions[handle].topic for handle in handles if handle in partitions))


def _each(operation: Operation, handles: Iterable[int], partitions: Partitions) -> Iterator[Need]:
    return ((operation, "topic", topic) for topic in _topics(handles, partitions))


def _join(join: groups.Join) -> Iterator[Need]:
    yield "read", "group", join.group
    for topic in join.topics:
        yield "read", "topic", topic
    if join.pattern:  # its coordinator names all matching topics
        yield "read", "topic", literal_start(join.pattern) + ALL


def _commit(commit: groups.Commit) -> Iterator[Need]:
    """A commit without a member is an operator's."""
    yield "read" if commit.member else "alter", "group", commit.group
    for topic in commit.topics:
        yield "read", "topic", topic.topic


def _transaction(frame: groups.OpenTransactions | groups.EndTransaction) -> Iterator[Need]:
    """Members of a group have transactional ids that its coordinator has generated, which others cannot guess."""
    if frame.group:
        yield "read", "group", frame.group
    name = frame.transactional_id
    if name and not (frame.group and name.startswith(GENERATED_PREFIX)):
        yield "write", "transaction", name


def _end(ending: groups.EndTransaction) -> Iterator[Need]:
    yield from _transaction(ending)
    if ending.HasField("offsets"):
        yield from _commit(ending.offsets)


# By the path of the call.
CALLS: Final[Mapping[str, CallNeeds]] = {
    "comet.v1.Comet/FetchMetadata": nothing,  # the answer is filtered
    "comet.v1.Comet/FindCoordinator": nothing,  # a slot and its broker, by a hash of the name
    "comet.v1.Comet/Publish": lambda request: (("write", "topic", request.topic),),
    "comet.v1.Comet/Fetch": lambda request: (("read", "topic", request.topic),),
    "comet.v1.Comet/ReadKeys": lambda request: (("read", "topic", request.topic),),
    "comet.v1.Comet/Acquire": lambda request: _shared(request, [request.topic], request.options),
    "comet.v1.Comet/Acknowledge": lambda request: _shared(request, [request.topic], groups.ShareOptions()),
    **{f"comet.v1.Admin/{act.name}": of_act(act) for act in ACTS.values()},
}

# By the kind of the frame.
FRAMES: Final[Mapping[str, FrameNeeds]] = {
    "hello": nothing,
    "ping": nothing,
    "fetch_metadata": nothing,  # the answer is filtered
    "fetch": lambda frame, _: (("read", "topic", frame.topic),),
    "publish": lambda frame, _: (("write", "topic", frame.topic),),
    "read_keys": lambda frame, _: (("read", "topic", frame.topic),),
    "produce": lambda frame, partitions: _each("write", [frame.partition], partitions),
    "attach": lambda frame, _: (("describe", "topic", frame.topic),),
    "find_offset": lambda frame, partitions: _each("describe", [frame.partition], partitions),
    "subscribe": lambda frame, partitions: _each("read", (one.partition for one in frame.starts), partitions),
    "credit": nothing,  # of a subscription of the same stream
    "unsubscribe": nothing,
    "join": lambda frame, _: _join(frame),
    "leave": lambda frame, _: (("read", "group", frame.group),),
    "heartbeat": lambda frame, _: (("read", "group", frame.group),),
    "release": lambda frame, _: (("read", "group", frame.group),),
    "commit": lambda frame, _: _commit(frame),
    "fetch_committed": lambda frame, _: (("describe", "group", frame.group),),
    "share_subscribe": lambda frame, partitions: _shared(frame, _topics(frame.partitions, partitions), frame.options),
    "acknowledge": nothing,  # of records that this stream has acquired
    "open_transactions": lambda frame, _: _transaction(frame),
    "end_transaction": lambda frame, _: _end(frame),
}
