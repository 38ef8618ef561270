"""What of a disk is certainly durable."""

from __future__ import annotations

from comet_broker.storage.memory import MemoryFiles


class Durable:
    """What of a file is certainly on disk, to be read: as the worst power cut would leave it."""

    def __init__(self, files: MemoryFiles) -> None:
        self._inodes = files._disk

    def exists(self, path: str) -> bool:
        return path in self._inodes

    def read_all(self, path: str) -> bytes:
        return bytes(self._inodes[path].disk)
