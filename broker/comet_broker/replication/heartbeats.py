"""Heartbeats of one side of a Replicate call, on a timer of their own; comet.wire.liveness decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from comet.v1 import replication_pb2 as pb
from comet.wire.liveness import BETWEEN_BROKERS, Liveness, LivenessVerdict
from comet_broker.ports import Clock

FROM_FOLLOWER: Final = pb.FollowerFrame(heartbeat=pb.ReplicaHeartbeat()).SerializeToString()
FROM_LEADER: Final = pb.LeaderFrame(heartbeat=pb.ReplicaHeartbeat()).SerializeToString()


def announce(frame_bytes: int) -> bytes:
    """The frame that a leader sends ahead of a large frame."""
    return pb.LeaderFrame(heartbeat=pb.ReplicaHeartbeat(next_frame_bytes=frame_bytes)).SerializeToString()


class Heartbeats:
    """Checks one stream every `check_s`. Owned by one side of it, which counts frames in `liveness`."""

    def __init__(self, clock: Clock, *, beat: Callable[[], None], silent: Callable[[], None]) -> None:
        self.liveness = Liveness(BETWEEN_BROKERS, clock.monotonic())
        self._clock = clock
        self._beat = beat
        self._silent = silent
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(BETWEEN_BROKERS.check_s, self._check)

    def _check(self) -> None:
        self._timer = self._loop.call_later(BETWEEN_BROKERS.check_s, self._check)
        match self.liveness.check(self._clock.monotonic()):
            case LivenessVerdict.HEARTBEAT:
                self._beat()
            case LivenessVerdict.SILENT:
                self._silent()
            case LivenessVerdict.FINE:
                pass

    def stop(self) -> None:
        self._timer.cancel()
