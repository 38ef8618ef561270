"""Requests that are refused, or only counted, on their way to a broker.

    client ─► frame, or unary call ─► RequestFaults ─► refused: the error is the answer, and no broker sees the request
                                            └───────► the broker

Calls have the names of their frames in the protocol, such as "produce", "fetch", "commit"; unary calls those of their
methods, such as "create_topic".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from google.protobuf.message import DecodeError, Message

from comet.errors import CometError, InvalidArgument, from_code
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import error_to_pb
from comet_testing.simulation.link import Way

HIT_S_MAX: Final = 120.0
LOOK_S: Final = 0.01
_ATTACH: Final = 0x22  # the sixth byte of a frame that attaches
_ATTACHED: Final = 0x2A
_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")
FRAMES: Final = {field.name for field in pb.ClientFrame.DESCRIPTOR.oneofs_by_name["frame"].fields}

When = Callable[[Any], bool]


class RequestFault:
    """Requests of one kind, while its `with` block runs. `hits` counts them."""

    def __init__(
        self, faults: RequestFaults, call: str, topic: str, error: CometError | None, count: int | None,
        probability: float, when: When | None,
    ) -> None:  # fmt: skip
        self.hits = 0
        self._faults = faults
        self._call = call
        self._topic = topic
        self._error = error
        self._count = count
        self._probability = probability
        self._when = when

    def __enter__(self) -> Self:
        self._faults.active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._faults.active.remove(self)

    async def hit(self, times: int = 1) -> None:
        """Waits until `times` requests were hit. Raises AssertionError after two minutes of virtual time."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + HIT_S_MAX
        while self.hits < times:
            if loop.time() > give_up:
                raise AssertionError(f"{self._call} was hit {self.hits} times in {HIT_S_MAX:.0f} s, not {times}")
            await asyncio.sleep(LOOK_S)

    def strikes(self, call: str, topics: set[str], request: Message, random: Random) -> bool:
        if call != self._call or (self._topic and self._topic not in topics):
            return False
        if self._count is not None and self.hits >= self._count:
            return False
        if self._when is not None and not self._when(request):
            return False
        if self._probability < 1 and random.random() >= self._probability:
            return False
        self.hits += 1
        return True

    @property
    def error(self) -> CometError | None:
        """What the request is refused with; None if it is only observed."""
        return self._error


class RequestFaults:
    """comet_testing.simulation.network.Gate. Owned by the world of a cluster."""

    def __init__(self, random: Random, note: Callable[[str], None]) -> None:
        self.active: list[RequestFault] = []
        self._random = random
        self._note = note
        self._attaching: dict[tuple[Way, int], str] = {}  # requests to attach, by way and number
        self._topics: dict[tuple[str, int], str] = {}  # by a broker's address and handle

    def fault(
        self, call: str, topic: str, error: str | CometError | type[CometError] | None, count: int | None,
        probability: float, when: When | None,
    ) -> RequestFault:  # fmt: skip
        if not re.fullmatch(r"[a-z_]+", call):
            raise InvalidArgument(f'a call is named as in the protocol, such as "produce" or "fetch", not {call!r}')
        if not 0 <= probability <= 1:
            raise InvalidArgument(f"a probability is from 0 to 1, not {probability}")
        return RequestFault(self, call, topic, _error_of(error, call), count, probability, when)

    # ---- Gate

    def refused_frame(self, way: Way, frame: bytes) -> bytes | None:
        """The answer to a frame that does not reach its broker; None for one that does."""
        if not self.active and not (len(frame) > 5 and frame[5] == _ATTACH):
            return None
        try:
            found = pb.ClientFrame.FromString(frame)
        except DecodeError:
            return None
        call = found.WhichOneof("frame")
        if call is None:
            return None
        if call == "attach":
            self._attaching[way, found.request] = found.attach.topic
        request = getattr(found, call)
        topics = {*_names(request), *(self._topics.get((way[1], handle), "") for handle in _handles(request))}
        error = self._struck(way, call, topics, request)
        if error is None:
            return None
        return pb.ServerFrame(request=found.request, error=pb.StreamError(error=error_to_pb(error))).SerializeToString()

    def answered(self, way: Way, frame: bytes) -> None:
        """Takes note of the handles that a broker gives out."""
        if len(frame) > 5 and frame[5] == _ATTACHED:
            found = pb.ServerFrame.FromString(frame)
            topic = self._attaching.pop(((way[1], way[0]), found.request), None)
            if topic is not None:
                self._topics[way[0], found.attached.partition] = topic

    def refused_call(self, way: Way, path: str, request: Message) -> CometError | None:
        if not self.active:
            return None
        call = _CAPITAL.sub("_", path.rpartition("/")[2]).lower()
        return self._struck(way, call, set(_names(request)), request)

    def _struck(self, way: Way, call: str, topics: set[str], request: Message) -> CometError | None:
        for one in self.active:
            if one.strikes(call, topics, request, self._random) and one.error is not None:
                self._note(f"{call} of {way[0]} at {way[1]} is refused: {one.error.code}")
                return one.error
        return None


def _error_of(error: str | CometError | type[CometError] | None, call: str) -> CometError | None:
    if error is None or isinstance(error, CometError):
        return error
    code = error if isinstance(error, str) else error.code
    if f"ERROR_CODE_{code}" not in types.ErrorCode.DESCRIPTOR.values_by_name:
        raise InvalidArgument(f'an error has a code such as "NOT_LEADER", not {code!r}; see comet.errors')
    return from_code(code, f"the test refuses {call}")


def _names(message: Message) -> Iterator[str]:
    """The topics that a request names."""
    for field, value in message.ListFields():
        if field.name == "topic" and isinstance(value, str):
            yield value
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else (value,):
                yield from _names(part)


def _handles(message: Message) -> Iterator[int]:
    """The partitions that a frame names by handle."""
    for field, value in message.ListFields():
        if field.name == "partition" and field.type == field.TYPE_FIXED32:
            yield value
        elif field.message_type is not None and field.name in {"starts", "partitions"}:
            for part in value:
                yield from _handles(part)
