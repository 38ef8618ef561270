"""Restarts processes that died, with growing pauses from one second."""

from __future__ import annotations

from typing import Final

from comet.cli._local_cluster import ClusterProcess, died
from comet.cli._output import note

RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 10.0
WELL_S: Final = 5.0  # a member that ran longer restarts after the first pause


class Keeper:
    """Restarts dead processes of one cluster. Its only side effects are starts and notes."""

    def __init__(self, members: list[ClusterProcess]) -> None:
        self._members = members
        self._delay_s = dict.fromkeys(members, RESTART_S_MIN)
        self._due: dict[ClusterProcess, float] = {}

    def check(self, now: float) -> float:
        """Reports deaths and starts due processes; returns the time to the next start in seconds."""
        for member in self._members:
            if member not in self._due and member.ended is not None:
                if now - member.started > WELL_S:
                    self._delay_s[member] = RESTART_S_MIN
                self._due[member] = now + self._delay_s[member]
                words = f": {member.last_line()}" if member.ended > 0 else ""  # a killed process logged no reason
                note(f"{died(member)}{words}; restarting it in {self._delay_s[member]:.0f} s")
                self._delay_s[member] = min(self._delay_s[member] * 2, RESTART_S_MAX)
        for member in [member for member, due in self._due.items() if due <= now]:
            del self._due[member]
            member.start()
            note(f"{member.name} restarted (pid {member.pid})")
        return max(min(self._due.values(), default=now + WELL_S) - now, 0.0)
