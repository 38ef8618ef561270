"""What one incarnation of a broker sees of its disk: the file system of its host until the moment it dies.

    broker ──► HostFiles ──► MemoryFiles (outlives the process; loses what was not synced when power fails)
                  │
                  └─ dies at a chosen operation: before it, or just after it took effect

A dead process changes nothing any more, no matter what its code still tries. So a crash can strike between any two
operations on files, in the middle of a function that never awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from comet_broker.ports import Buffer, File
from comet_broker.storage.memory import MemoryFiles
from comet_testing.simulation.loop import Killed, Node

T = TypeVar("T")


@dataclass(slots=True)
class CrashPoint:
    """Counts down over operations that change the disk; at zero the node dies."""

    operations: int = 0  # 0: none set
    after: bool = False  # the operation took effect before the process died
    strike: Callable[[], None] = lambda: None


class HostFiles:
    """ports.Files of one incarnation."""

    def __init__(self, inner: MemoryFiles, node: Node, sync_failed: Callable[[str], None]) -> None:
        self._inner = inner
        self._node = node
        self.sync_failed = sync_failed  # told the path, so that the history knows what may be lost
        self.changed: Callable[[str, int], None] | None = None  # told of a log's bytes: path, size, -1 for removed
        self.point = CrashPoint()

    def note(self, path: str, size: int) -> None:
        if self.changed is not None and path.endswith(".log"):
            self.changed(path, size)

    def _note_if_gone(self, path: str) -> None:
        """After a removal, which a crash may have prevented."""
        if not self._inner.exists(path):
            self.note(path, -1)

    def look(self, operation: Callable[[], T]) -> T:
        """An operation that changes nothing."""
        if self._node.dead:
            raise Killed
        return operation()

    def change(self, operation: Callable[[], T]) -> T:
        """An operation that changes the disk, and may be the one at which the process dies."""
        if self._node.dead:
            raise Killed
        point = self.point
        if not point.operations:
            return operation()
        point.operations -= 1
        if point.operations:
            return operation()
        if point.after:
            operation()
        point.strike()
        assert self._node.dead
        raise Killed

    # ---- ports.Files

    def open(self, path: str, *, create: bool = False) -> File:
        act = self.change if create else self.look
        return HostFile(self, act(lambda: self._inner.open(path, create=create)), path)

    def read_all(self, path: str) -> bytes:
        return self.look(lambda: self._inner.read_all(path))

    def write_atomic(self, path: str, data: bytes) -> None:
        self.change(lambda: self._inner.write_atomic(path, data))

    def exists(self, path: str) -> bool:
        return self.look(lambda: self._inner.exists(path))

    def list(self, path: str) -> Sequence[str]:
        return self.look(lambda: self._inner.list(path))

    def make_folder(self, path: str) -> None:
        self.change(lambda: self._inner.make_folder(path))

    def remove(self, path: str) -> None:
        try:
            self.change(lambda: self._inner.remove(path))
        finally:
            self._note_if_gone(path)

    def remove_folder(self, path: str) -> None:
        logs = [f"{path}/{name}" for name in self._inner.list(path) if name.endswith(".log")]
        try:
            self.change(lambda: self._inner.remove_folder(path))
        finally:
            for name in logs:
                self._note_if_gone(name)

    def rename(self, source: str, target: str) -> None:
        try:
            self.change(lambda: self._inner.rename(source, target))
        finally:
            self._note_if_gone(source)

    def sync_folder(self, path: str) -> None:
        self.change(lambda: self._inner.sync_folder(path))

    def free_bytes(self) -> int:
        return self.look(self._inner.free_bytes)


class HostFile:
    """ports.File."""

    def __init__(self, files: HostFiles, inner: File, path: str) -> None:
        self._files = files
        self._inner = inner
        self._path = path

    def append(self, parts: Sequence[Buffer]) -> None:
        try:
            self._files.change(lambda: self._inner.append(parts))
        finally:
            self._files.note(self._path, self._inner.size)

    def read(self, position: int, size: int) -> bytes:
        return self._files.look(lambda: self._inner.read(position, size))

    def read_into(self, position: int, into: memoryview) -> int:
        return self._files.look(lambda: self._inner.read_into(position, into))

    def read_cached(self, position: int, into: memoryview) -> int:
        return self._files.look(lambda: self._inner.read_cached(position, into))

    def forget_cache(self) -> None:
        self._files.look(self._inner.forget_cache)

    def reserve(self, size: int) -> None:
        self._files.change(lambda: self._inner.reserve(size))

    def truncate(self, size: int) -> None:
        try:
            self._files.change(lambda: self._inner.truncate(size))
        finally:
            self._files.note(self._path, self._inner.size)

    def sync(self) -> None:
        self._files.change(self._sync)

    def _sync(self) -> None:
        try:
            self._inner.sync()
        except OSError:
            self._files.sync_failed(self._path)
            raise

    def close(self) -> None:
        self._files.look(self._inner.close)

    @property
    def size(self) -> int:
        return self._inner.size

    @property
    def torn(self) -> bool:
        return self._inner.torn
