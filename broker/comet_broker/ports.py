"""What the broker needs from the world, as small protocols.

Everything that decides takes these as arguments, so that a whole cluster runs in one process on virtual
time (tests/sim) exactly as it runs on real machines. Each port has a real version and an in-memory one,
and one contract suite runs against both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from comet.wire.transport import Channel, Stream

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Two clocks that must not be mixed: wall time for what people see, monotonic time for every decision."""

    def wall_us(self) -> int: ...
    def monotonic(self) -> float: ...


class Process(Protocol):
    """What the process that the broker runs in takes; None where that cannot be told."""

    def cpu_s(self) -> float | None:
        """Time on a processor, so far."""

    def memory_bytes(self) -> int | None: ...


class Worker(Protocol):
    """Runs what blocks (fsync, cold reads) off the thread that owns the data."""

    async def run(self, function: Callable[[], T]) -> T: ...


class File(Protocol):
    """One open file. Owned by one log; writes come from one thread, `read` and `sync` may come from a worker."""

    def append(self, parts: Sequence[Buffer]) -> None:
        """Writes all parts at the end. On any failure raises OSError with the file cut back to where it was,
        or, where even that failed, raises OSError with `torn` true afterwards."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def read_into(self, position: int, into: memoryview) -> int:
        """Fills `into` and returns how many bytes; fewer than it holds only at the end of the file."""

    def read_cached(self, position: int, into: memoryview) -> int:
        """Fills `into` from memory without blocking and returns how many bytes; 0 if it would have to wait."""

    def reserve(self, size: int) -> None:
        """Asks for disk space up to `size` without changing the file's length; does nothing where it cannot.
        Raises OSError(ENOSPC) when there is none."""

    def forget_cache(self) -> None:
        """Drops what memory holds of the file, so that it is read from the disk again: after a failed sync, memory
        may hold what the disk does not. Does nothing where it cannot."""

    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """Forces what was written to disk. A failure is final for the log: never call it again."""

    def close(self) -> None: ...

    @property
    def size(self) -> int: ...

    @property
    def torn(self) -> bool:
        """A failed append could not be undone: the file's tail is unknown."""


class Files(Protocol):
    """A file system below one root folder. Paths are relative, with '/' between parts.

    The only thing in the broker that opens, syncs and renames.
    """

    def open(self, path: str, *, create: bool = False) -> File: ...
    def read_all(self, path: str) -> bytes: ...
    def write_atomic(self, path: str, data: bytes) -> None:
        """Replaces the file: temporary file, sync, rename, sync of the folder."""

    def exists(self, path: str) -> bool: ...
    def list(self, path: str) -> Sequence[str]:
        """Names in a folder, sorted; empty when there is no such folder."""

    def make_folder(self, path: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_folder(self, path: str) -> None:
        """Removes the folder and all in it."""

    def rename(self, source: str, target: str) -> None: ...
    def sync_folder(self, path: str) -> None: ...
    def free_bytes(self) -> int: ...


class PeerChannel(Channel, Protocol):
    """A connection from one broker to another: all that a client can call, and replication."""

    def replicate(self) -> Stream:
        """One Replication.Replicate call."""


class Network(Protocol):
    """How a broker reaches the others."""

    def connect(self, address: str) -> PeerChannel:
        """Never blocks, never fails; what cannot be reached says so when it is used."""

    async def refused(self, address: str) -> bool:
        """True only if it is certain that no process listens there. Silence, or any doubt, is False. Takes a
        second at most."""
