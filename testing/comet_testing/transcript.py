"""What happened in a simulated cluster, in one text: the acts of the test, every call and every frame.

One seed is one transcript, byte for byte. The newest lines are kept; the digest is over all of them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from comet_testing.simulation.link import Way

LINES_MAX: Final = 20_000


class Transcript:
    """comet_testing.simulation.link.Tap. Owned by the world of a cluster."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._acts: deque[str] = deque(maxlen=LINES_MAX)
        self._digest = hashlib.sha256()

    def note(self, text: str) -> None:
        """Adds an act of the test, or a fault."""
        self._acts.append(self._add(text))

    def sent(self, way: Way, what: str, data: bytes) -> None:
        source, target = way
        self._add(f"{source} > {target} {what} {len(data)} {crc32c(data):08x}")

    def _add(self, text: str) -> str:
        line = f"{self._now():.6f} {text}"
        self._lines.append(line)
        self._digest.update(line.encode() + b"\n")
        return line

    def __str__(self) -> str:
        return "\n".join(self._lines)

    @property
    def acts(self) -> list[str]:
        """The newest acts of the test and faults, without calls and frames."""
        return list(self._acts)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
