"""Liveness of a stream: decides when one side sends a heartbeat, and when the other side counts as dead.

    each frame          ─► received += 1, or sent += 1      the only work on the hot path
    every LIVENESS_CHECK_S  check(now) ─► HEARTBEAT         nothing was sent for HEARTBEAT_S
                                       ─► SILENT            nothing was received for SILENCE_S

Time is counted by checks. A check that comes late counts as one on time, and SILENT needs two checks in a row: a
process that stood still (SIGSTOP, a long garbage collection) takes the frames that wait in its socket in between.

Pure, single-threaded. Owned by one side of one stream, created when the stream is opened.
"""

from __future__ import annotations

from enum import Enum, auto

from comet_broker import limits


class LivenessVerdict(Enum):
    FINE = auto()
    HEARTBEAT = auto()  # send one now
    SILENT = auto()  # end the stream


class Liveness:
    def __init__(self, now: float) -> None:
        self.received = 0  # frames; the owner counts
        self.sent = 0
        self.silent = False  # `check` has returned SILENT
        self._checked_at = now
        self._received_checked = self._sent_checked = 0  # of these, at the last check
        self._silent_s = self._unsent_s = 0.0
        self._expected = 0  # the number of the received frame that was announced as large
        self._allowed_s = limits.SILENCE_S
        self._due = False  # the last check found the other side silent

    def expect(self, frame_bytes: int) -> None:
        """The next frame is so large that it may take longer than SILENCE_S on a slow link."""
        self._expected = self.received
        self._allowed_s = limits.SILENCE_S + frame_bytes / limits.LINK_BYTES_PER_S_MIN

    def check(self, now: float) -> LivenessVerdict:
        passed_s = max(0.0, now - self._checked_at)
        self._checked_at = now
        counted_s = min(passed_s, limits.LIVENESS_CHECK_S)
        self._unsent_s = 0.0 if self.sent != self._sent_checked else self._unsent_s + passed_s
        self._silent_s = 0.0 if self.received != self._received_checked else self._silent_s + counted_s
        if self.received > self._expected:
            self._allowed_s = limits.SILENCE_S
        self._received_checked, self._sent_checked = self.received, self.sent
        due, self._due = self._due, self._silent_s >= self._allowed_s
        if self._due and due:
            self.silent = True
            return LivenessVerdict.SILENT
        return LivenessVerdict.HEARTBEAT if self._unsent_s >= limits.HEARTBEAT_S else LivenessVerdict.FINE
