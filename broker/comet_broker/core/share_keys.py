"""Which record of a key is first in line: what keeps the events of one key in order while many members take events.

Pure. Records are added in the order of their offsets, and taken out when they are acknowledged.
"""

from __future__ import annotations

from collections import deque


class KeyOrder:
    """The keys of the records from `base` on, as far as they were looked at. Owned by a Shares."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._keys: list[int | None] = []
        self._lines: dict[
            int, deque[int] | None
        ] = {}  # of each key whose first record is not acknowledged, those behind it

    @property
    def end(self) -> int:
        return self._base + len(self._keys)

    def add(self, offset: int, key: int | None) -> bool:
        """True if no earlier record of the key is in its way."""
        assert offset == self.end, "every record has its place"
        self._keys.append(key)
        if key is None:
            return True
        if key not in self._lines:
            self._lines[key] = None
            return True
        behind = self._lines[key]
        if behind is None:
            self._lines[key] = deque((offset,))
        else:
            behind.append(offset)
        return False

    def done(self, offset: int) -> int | None:
        """The first record of its key is acknowledged, or set aside: the next one of that key, if there is one."""
        key = self._keys[offset - self._base]
        if key is None:
            return None
        behind = self._lines[key]
        if not behind:
            del self._lines[key]
            return None
        following = behind.popleft()
        assert following > offset, "the events of a key come in order"
        return following

    def trim(self, base: int) -> None:
        """Nothing below `base` will be asked for again."""
        assert self._base <= base <= self.end
        del self._keys[: base - self._base]
        self._base = base
