"""Files in memory on which the process dies at a chosen change, before it or just after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from comet_broker.ports import Buffer
from comet_broker.storage.memory import MemoryFile, MemoryFiles


class Died(BaseException):
    """Nothing catches it."""


class DyingFiles(MemoryFiles):
    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.changes = 0
        self.dies_at = -1
        self.after = False

    def change(self, operation: Callable[[], None]) -> None:
        self.changes += 1
        if self.changes != self.dies_at:
            operation()
            return
        if self.after:
            operation()
        raise Died

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create and not self.exists(path):
            self.change(lambda: super(DyingFiles, self).open(path, create=True).close())
        return _DyingFile(super().open(path))

    def remove(self, path: str) -> None:
        self.change(lambda: super(DyingFiles, self).remove(path))

    def rename(self, source: str, target: str) -> None:
        self.change(lambda: super(DyingFiles, self).rename(source, target))

    def sync_folder(self, path: str) -> None:
        self.change(lambda: super(DyingFiles, self).sync_folder(path))


class _DyingFile(MemoryFile):
    def __init__(self, inner: MemoryFile) -> None:
        assert isinstance(inner._files, DyingFiles)
        super().__init__(inner._files, inner._inode)
        self._dying = inner._files

    def append(self, parts: Sequence[Buffer]) -> None:
        self._dying.change(lambda: super(_DyingFile, self).append(parts))

    def truncate(self, size: int) -> None:
        self._dying.change(lambda: super(_DyingFile, self).truncate(size))

    def sync(self) -> None:
        self._dying.change(lambda: super(_DyingFile, self).sync())
