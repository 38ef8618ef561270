"""A clock that a test holds while it prepares something: what is to run out runs out after that."""

from __future__ import annotations

from comet_broker.system import SystemClock


class HeldClock(SystemClock):
    """The real clock, but for the times in which it is held. It never jumps."""

    def __init__(self) -> None:
        super().__init__()
        self._held_at: float | None = None
        self._behind_s = 0.0

    def monotonic(self) -> float:
        if self._held_at is not None:
            return self._held_at
        return super().monotonic() - self._behind_s

    def hold(self) -> None:
        """From now on no time goes by."""
        assert self._held_at is None
        self._held_at = self.monotonic()

    def advance(self, seconds: float) -> None:
        """So much of it goes by while it is held."""
        assert self._held_at is not None
        self._held_at += seconds

    def go_on(self) -> None:
        assert self._held_at is not None
        self._behind_s = super().monotonic() - self._held_at
        self._held_at = None
