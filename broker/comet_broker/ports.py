"""The broker's interfaces to the outside world, as small protocols.

Code that decides takes these as arguments, so a whole cluster runs in one process on virtual time (comet_testing)
exactly as on real machines. Each port has a real version and an in-memory one, and one contract suite runs against
both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from comet.wire.transport import Channel, Stream

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Two clocks that must not be mixed: wall time for people, monotonic time for every decision."""

    def wall_us(self) -> int: ...
    def monotonic(self) -> float: ...


class Process(Protocol):
    """The resource use of the broker's process; None if unknown."""

    def cpu_s(self) -> float | None:
        """Time on a processor, so far."""

    def memory_bytes(self) -> int | None: ...
    def memory_limit_bytes(self) -> int | None:
        """The memory that the process may use: its control group's limit, else all of the machine's."""

    def trim_memory(self) -> None:
        """Gives freed memory back to the system. Blocks."""


class Worker(Protocol):
    """Runs blocking functions (fsync, cold reads) off the thread that owns the data."""

    async def run(self, function: Callable[[], T]) -> T: ...


class File(Protocol):
    """One open file. Owned by one log; writes come from one thread, `read` and `sync` may come from a worker."""

    def append(self, parts: Sequence[Buffer]) -> None:
        """Writes all parts at the end. On a failure raises OSError with the file truncated to its former size, or, if
        even that failed, with `torn` true afterwards."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def read_into(self, position: int, into: memoryview) -> int:
        """Fills `into` and returns how many bytes; fewer than it holds only at the end of the file."""

    def read_cached(self, position: int, into: memoryview) -> int:
        """Fills `into` from memory without blocking and returns how many bytes; 0 if it would have to wait."""

    def reserve(self, size: int) -> None:
        """Requests disk space up to `size` without changing the file's length; no effect where unsupported. Raises
        OSError(ENOSPC) when there is none."""

    def forget_cache(self) -> None:
        """Drops the file from the page cache, so that it is read from the disk again. After a failed sync, memory may
        differ from the disk. No effect where unsupported."""

    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """Forces written bytes to disk. A failure is final for the log: never call it again."""

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
        """Removes the folder and its contents."""

    def rename(self, source: str, target: str) -> None: ...
    def sync_folder(self, path: str) -> None: ...
    def free_bytes(self) -> int: ...


class WirePeer(NamedTuple):
    """A broker that serves the wire to others."""

    address: str
    broker_id: int
    cluster_id: str


class PeerChannel(Channel, Protocol):
    """A connection from one broker to another: all calls of a client, and replication."""

    async def replicate(self, wire: WirePeer | None) -> Stream:
        """One Replication.Replicate call, over the wire if the other broker serves it. Raises Unavailable."""


class Network(Protocol):
    """The connections of a broker to others."""

    def connect(self, address: str) -> PeerChannel:
        """Never blocks, never fails; an unreachable address fails when it is used."""

    async def refused(self, address: str) -> bool:
        """True only if it is certain that no process listens there. Silence, or any doubt, is False. Takes a second at
        most."""
