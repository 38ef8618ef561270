"""The rule for silence on every stream, over gRPC and the wire alike: a side that has sent nothing for `heartbeat_s`
sends a heartbeat, and one that has received nothing for `silence_s` ends the stream.

    each frame         ─► received += 1, or sent += 1      the only work on the hot path
    every check_s      ─► check(now) ─► HEARTBEAT          nothing was sent for heartbeat_s
                                     ─► SILENT             nothing was received for silence_s

Neither side waits for the other: a heartbeat is not answered, so it also says that a side is there which waits behind a
large frame of its own.

Time is counted by checks. A check that comes late counts as one on time, and SILENT needs two checks in a row: a
process that stood still (SIGSTOP, a long garbage collection) takes the frames that wait in its socket in between. So
silence is noticed two checks after `silence_s` at the latest.

Pure, single-threaded. Owned by one side of one stream, created when the stream is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

ROUNDING_S: Final = 1e-6  # of sums of many times


@dataclass(frozen=True, slots=True)
class SilenceBounds:
    """The bounds of one side of a stream."""

    heartbeat_s: float
    silence_s: float
    check_s: float

    def __post_init__(self) -> None:
        assert 2 * (self.heartbeat_s + 2 * self.check_s) <= self.silence_s, "one late heartbeat is not a silence"


# A broker does not stand still for seconds.
OF_BROKERS: Final = SilenceBounds(heartbeat_s=2.0, silence_s=6.0, check_s=0.5)
# A client's loop may stand still while the application computes. After ten seconds, the default session timeout, its
# members are removed from their groups anyway.
OF_CLIENTS: Final = SilenceBounds(heartbeat_s=2.0, silence_s=12.0, check_s=0.5)
# Between brokers, tighter: a silent follower holds up acks="all" until it has connected again.
BETWEEN_BROKERS: Final = SilenceBounds(heartbeat_s=1.0, silence_s=3.0, check_s=0.25)


class LivenessVerdict(Enum):
    FINE = auto()
    HEARTBEAT = auto()  # send one now
    SILENT = auto()  # end the stream


class Liveness:
    def __init__(self, bounds: SilenceBounds, now: float) -> None:
        self.received = 0  # frames; the owner counts
        self.sent = 0
        self.silent = False  # `check` has returned SILENT
        self.silent_s = 0.0  # without a received frame, as of the last check
        self._bounds = bounds
        self._checked_at = now
        self._received_checked = self._sent_checked = 0  # of these, at the last check
        self._unsent_s = 0.0
        self._expected = 0  # the number of the received frame that was announced as large
        self._allowed_s = bounds.silence_s
        self._due = False  # the last check found the other side silent

    def expect(self, more_s: float) -> None:
        """The next frame is so large that it may take so much longer on a slow link."""
        self._expected = self.received
        self._allowed_s = self._bounds.silence_s + more_s

    def check(self, now: float) -> LivenessVerdict:
        bounds = self._bounds
        passed_s = max(0.0, now - self._checked_at)
        self._checked_at = now
        counted_s = min(passed_s, bounds.check_s)
        self._unsent_s = 0.0 if self.sent != self._sent_checked else self._unsent_s + passed_s
        self.silent_s = 0.0 if self.received != self._received_checked else self.silent_s + counted_s
        if self.received > self._expected:
            self._allowed_s = bounds.silence_s
        self._received_checked, self._sent_checked = self.received, self.sent
        due, self._due = self._due, self.silent_s >= self._allowed_s - ROUNDING_S
        if self._due and due:
            self.silent = True
            return LivenessVerdict.SILENT
        return LivenessVerdict.HEARTBEAT if self._unsent_s >= bounds.heartbeat_s - ROUNDING_S else LivenessVerdict.FINE
