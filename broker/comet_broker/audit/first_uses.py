"""The topics, groups and transactional ids that each principal has read or written today. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from comet_broker.audit.event import OTHERS


class FirstUses:
    """Empties itself as a new day begins. A principal has a limit of its own, so that it cannot use up the day."""

    def __init__(self, uses_max: int, principal_uses_max: int) -> None:
        self._uses_max = uses_max
        self._principal_uses_max = principal_uses_max
        self._day = -1
        self._known: set[tuple[str, Hashable]] = set()
        self._counts: Counter[str] = Counter()  # of each principal

    def note(self, day: int, principal: str, use: Hashable) -> tuple[str, Hashable] | None:
        """The principal and its use if it is the first of the day. OTHERS as the use, or as both, if it is the first
        beyond a limit. None: it is known, or beyond the limit."""
        if day != self._day:
            self._day = day
            self._known.clear()
            self._counts.clear()
        found = (principal, use)
        if found in self._known:
            return None
        if self._counts[principal] >= self._principal_uses_max:
            found = (principal, OTHERS)
        if found not in self._known and len(self._known) >= self._uses_max:
            found = (OTHERS, OTHERS)
        if found in self._known:
            return None
        self._known.add(found)
        self._counts[found[0]] += 1
        return found
