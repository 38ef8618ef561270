"""The order of the records of each key, while many members acquire records.

Pure. Records are added in the order of their offsets, and removed when they are acknowledged.
"""

from __future__ import annotations

from collections import deque


class KeyOrder:
    """The keys of the records from `base` on, as far as they were added. Owned by a Shares."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._keys: list[int | None] = []
        # Of each key whose first record is not acknowledged: the records behind it.
        self._lines: dict[int, deque[int] | None] = {}

    @property
    def end(self) -> int:
        return self._base + len(self._keys)

    def add(self, offset: int, key: int | None) -> bool:
        """Adds a record; True if no earlier record of its key is unacknowledged."""
        assert offset == self.end, "records are added without gaps"
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
        """Removes the first record of its key, acknowledged or set aside; returns the key's next record, if any."""
        key = self._keys[offset - self._base]
        if key is None:
            return None
        behind = self._lines[key]
        if not behind:
            del self._lines[key]
            return None
        following = behind.popleft()
        assert following > offset, "the records of a key are in order"
        return following

    def trim(self, base: int) -> None:
        """Drops the keys below `base`."""
        assert self._base <= base <= self.end
        del self._keys[: base - self._base]
        self._base = base
