"""A file system in memory behind the Files port, with the faults of a real one.

Every file exists twice: as the broker sees it, and as it is on the disk. `sync` copies the first to the second,
`sync_folder` does so for names. A crash leaves the state of the disk and, at random, parts of the unsynced state:

    bytes not synced     none, all, a prefix, or pages of them with zeros in between
    names not synced     each of them as before or as after

Faults are set on `faults` and by the methods that damage: a full disk, a failing sync after which the bytes are
lost although later syncs succeed (as on Linux), failing and torn writes, flipped bits.

Deterministic: all chance comes from the Random it is given.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from comet_broker.ports import Buffer

PAGE_BYTES: Final = 4096
_PLENTY_BYTES: Final = 1 << 50


@dataclass(slots=True)
class Faults:
    """The next faults. A countdown of 1 strikes at the next call, None never."""

    capacity_bytes: int | None = None  # size of the disk
    sync_fails_in: int | None = None  # EIO, once; the bytes to be synced are lost
    append_fails_in: int | None = None  # EIO, once; the file is truncated to its earlier size
    append_full_in: int | None = None  # ENOSPC, once; the next write finds room again
    append_tears_in: int | None = None  # EIO, once; part of the bytes stay and cannot be truncated
    open_fails_in: int | None = None  # EMFILE, once
    syncs: int = 0  # the number of syncs, for tests that strike at each in turn


@dataclass(slots=True, eq=False)
class _Inode:
    """One file's bytes, as seen and as on disk."""

    seen: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    clean: int = 0  # below it, both agree, except for `lost`
    lost: list[tuple[int, int]] = field(default_factory=list)  # believed on disk after a failed sync, but are not
    unreadable: list[tuple[int, int]] = field(default_factory=list)  # EIO for reads of these
    links: int = 0

    def sync(self) -> None:
        size = len(self.seen)
        self.disk[self.clean :] = self.seen[self.clean : size]
        self.clean = size
        for start, end in self.lost:
            self.disk[start:end] = bytes(len(self.disk[start:end]))

    def lose(self) -> None:
        """A sync failed: the kernel treats the bytes as clean now, so that no later sync writes them."""
        if self.clean < len(self.seen):
            self.lost.append((self.clean, len(self.seen)))

    def forget(self) -> None:
        """Drops the page cache: the bytes that a failed sync lost now read as lost."""
        for start, end in self.lost:
            self.seen[start:end] = bytes(len(self.seen[start:end]))

    def cut(self, size: int) -> None:
        del self.seen[size:]
        self.unreadable = [(start, min(end, size)) for start, end in self.unreadable if start < size]
        self.clean = min(self.clean, size)
        self.lost = [(start, min(end, size)) for start, end in self.lost if start < size]

    def crash(self, random: Random) -> None:
        """Goes back to the bytes on disk, with a part of the unsynced ones."""
        survived = bytearray(self.disk)
        if len(self.disk) <= len(self.seen) and self.clean == len(self.disk) and not self.lost:
            survived += _survivor(random, bytes(self.seen[self.clean :]))
        elif self.clean < len(self.disk) and random.random() < 0.5:  # a truncation that did reach the disk
            del survived[self.clean :]
        self.seen, self.disk, self.clean, self.lost = bytearray(survived), survived, len(survived), []


def _survivor(random: Random, suffix: bytes) -> bytes:
    """The part of written, unsynced bytes that survives a power cut."""
    if not suffix:
        return suffix
    match random.randrange(4):
        case 0:
            return b""
        case 1:
            return suffix
        case 2:
            return suffix[: random.randrange(len(suffix) + 1)]
        case _:
            holed = bytearray(suffix)
            for start in range(0, len(holed), PAGE_BYTES):
                if random.random() < 0.5:
                    end = min(start + PAGE_BYTES, len(holed))
                    holed[start:end] = bytes(end - start)
            return bytes(holed)


class MemoryFile:
    """ports.File of a MemoryFiles; unusable after its crash."""

    def __init__(self, files: MemoryFiles, inode: _Inode) -> None:
        self._files = files
        self._inode = inode
        self._boot = files.boots
        self._torn = False
        self._open = True

    def _check(self) -> _Inode:
        if not self._open:
            raise OSError(errno.EBADF, errno.errorcode[errno.EBADF])
        if self._boot != self._files.boots:
            raise OSError(errno.EIO, "the machine this file was opened on has crashed")
        return self._inode

    @property
    def size(self) -> int:
        return len(self._inode.seen)

    @property
    def torn(self) -> bool:
        return self._torn

    def append(self, parts: Sequence[Buffer]) -> None:
        inode = self._check()
        data = b"".join(parts)
        self._files.take_space(len(data))
        if self._files.strikes("append_full_in"):
            self._files.give_space(len(data))
            raise OSError(errno.ENOSPC, errno.errorcode[errno.ENOSPC])
        if self._files.strikes("append_fails_in"):
            self._files.give_space(len(data))
            raise OSError(errno.EIO, errno.errorcode[errno.EIO])
        if self._files.strikes("append_tears_in"):
            self._torn = True
            inode.seen += data[: len(data) // 2]
            raise OSError(errno.EIO, errno.errorcode[errno.EIO])
        inode.seen += data

    def read(self, position: int, size: int) -> bytes:
        assert position >= 0
        assert size >= 0
        inode = self._check()
        if any(start < position + size and position < end for start, end in inode.unreadable):
            raise OSError(errno.EIO, errno.errorcode[errno.EIO])
        return bytes(inode.seen[position : position + size])

    def read_into(self, position: int, into: memoryview) -> int:
        data = self.read(position, len(into))
        into[: len(data)] = data
        return len(data)

    def read_cached(self, position: int, into: memoryview) -> int:
        if self._files.random.random() < self._files.cold:
            return 0
        try:
            return self.read_into(position, into)
        except OSError:
            return 0

    def reserve(self, size: int) -> None:
        self._check()
        if size - self.size > self._files.free_bytes():
            raise OSError(errno.ENOSPC, errno.errorcode[errno.ENOSPC])

    def forget_cache(self) -> None:
        self._check().forget()

    def truncate(self, size: int) -> None:
        inode = self._check()
        before = len(inode.seen)
        if size > before:
            self._files.take_space(size - before)
            inode.seen += bytes(size - before)
        else:
            inode.cut(size)
            self._files.give_space(before - size)

    def sync(self) -> None:
        inode = self._check()
        self._files.faults.syncs += 1
        if self._files.strikes("sync_fails_in"):
            inode.lose()
            raise OSError(errno.EIO, errno.errorcode[errno.EIO])
        inode.sync()

    def close(self) -> None:
        self._open = False


class MemoryFiles:
    """ports.Files in memory. `cold` is the share of reads that miss the page cache."""

    def __init__(self, random: Random | None = None, *, cold: float = 0.0) -> None:
        self.random = random or Random(0)
        self.cold = cold
        self.faults = Faults()
        self.boots = 0
        self.used_bytes = 0
        self._seen: dict[str, _Inode] = {}
        self._disk: dict[str, _Inode] = {}
        self._folders: set[str] = {""}
        self._folders_disk: set[str] = {""}

    # ---- faults

    def strikes(self, countdown: str) -> bool:
        left: int | None = getattr(self.faults, countdown)
        if left is None:
            return False
        assert left > 0
        setattr(self.faults, countdown, left - 1 or None)
        return left == 1

    def crash(self, *, power: bool = True) -> None:
        """The machine loses power, or with power=False only the process dies, which loses no written bytes."""
        self.boots += 1
        self.faults = Faults(capacity_bytes=self.faults.capacity_bytes)
        if not power:
            return
        self._crash_folders()
        self._crash_names()
        for inode in self._inodes():
            inode.crash(self.random)
        self._seen = dict(self._disk)
        self._recount()

    def _crash_folders(self) -> None:
        for path in sorted(self._folders ^ self._folders_disk):
            keep = (path in self._folders) == (self.random.random() < 0.5)
            (self._folders_disk.add if keep else self._folders_disk.discard)(path)
        self._folders_disk = {path for path in self._folders_disk if _above(path) <= self._folders_disk}
        self._folders = set(self._folders_disk)

    def _crash_names(self) -> None:
        for path in sorted(self._seen.keys() | self._disk.keys()):
            after = self._seen.get(path)
            if after is not self._disk.get(path) and self.random.random() < 0.5:
                if after is None:
                    del self._disk[path]
                else:
                    self._disk[path] = after
        self._disk = {path: inode for path, inode in self._disk.items() if _above(path) <= self._folders}

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        """Damages one bit of a file, in memory and on disk."""
        inode = self._seen[path]
        for data in (inode.seen, inode.disk):
            if position < len(data):
                data[position] ^= 1 << bit

    def wear_out(self, path: str, position: int, size: int) -> None:
        """The disk can no longer read these bytes of a file."""
        self._seen[path].unreadable.append((position, position + size))

    def snapshot(self) -> dict[str, bytes]:
        """The present bytes of every file, as the broker sees them."""
        return {path: bytes(inode.seen) for path, inode in self._seen.items()}

    def put_back(self, files: Mapping[str, bytes], below: str = "") -> None:
        """Restores the files below the folder from the snapshot, on disk too. While no file is open."""
        within = f"{below}/" if below else ""
        for path in [path for path in {**self._seen, **self._disk} if path.startswith(within)]:
            self._seen.pop(path, None)
            self._disk.pop(path, None)
        for path, data in files.items():
            if path.startswith(within):
                self.make_folder(_parent(path))
                inode = _Inode(bytearray(data), bytearray(data), len(data))
                self._seen[path] = self._disk[path] = inode
        self._recount()

    def cut(self, path: str, size: int) -> None:
        """Removes the end of a file, in memory and on disk."""
        inode = self._seen[path]
        inode.cut(size)
        del inode.disk[size:]
        self._recount()

    def _inodes(self) -> list[_Inode]:
        found = {id(inode): inode for path in sorted(self._disk) for inode in (self._disk[path],)}
        found |= {id(inode): inode for path in sorted(self._seen) for inode in (self._seen[path],)}
        return list(found.values())

    def _recount(self) -> None:
        self.used_bytes = sum(len(inode.seen) for inode in {id(i): i for i in self._seen.values()}.values())

    def take_space(self, size: int) -> None:
        if size > self.free_bytes():
            raise OSError(errno.ENOSPC, errno.errorcode[errno.ENOSPC])
        self.used_bytes += size

    def give_space(self, size: int) -> None:
        self.used_bytes -= size

    # ---- files

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if self.strikes("open_fails_in"):
            raise OSError(errno.EMFILE, errno.errorcode[errno.EMFILE], path)
        inode = self._seen.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, errno.errorcode[errno.ENOENT], path)
            if _parent(path) not in self._folders:
                raise FileNotFoundError(errno.ENOENT, errno.errorcode[errno.ENOENT], path)
            inode = self._seen[path] = _Inode()
        return MemoryFile(self, inode)

    def read_all(self, path: str) -> bytes:
        return self.open(path).read(0, _PLENTY_BYTES)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        try:
            file = self.open(temporary, create=True)
            file.truncate(0)
            file.append((data,))
            file.sync()
            self.rename(temporary, path)
        except OSError:
            if self.exists(temporary):
                self.remove(temporary)
            raise
        self.sync_folder(_parent(path))

    def exists(self, path: str) -> bool:
        return path in self._seen or path in self._folders

    def list(self, path: str) -> Sequence[str]:
        below = f"{path}/" if path else ""
        names = {other[len(below) :] for other in (*self._seen, *self._folders) if other.startswith(below)}
        return sorted({name.partition("/")[0] for name in names if name})

    def make_folder(self, path: str) -> None:
        for folder in sorted({path, *_above(path)}):
            self._folders.add(folder)
            self._folders_disk.add(folder)

    def remove(self, path: str) -> None:
        inode = self._seen.pop(path, None)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, errno.errorcode[errno.ENOENT], path)
        self.give_space(len(inode.seen))

    def remove_folder(self, path: str) -> None:
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, errno.errorcode[errno.ENOENT], path)
        for other in [other for other in self._seen if other.startswith(f"{path}/")]:
            self.remove(other)
            self._disk.pop(other, None)
        gone = {other for other in self._folders if other == path or other.startswith(f"{path}/")}
        self._folders -= gone
        self._folders_disk -= gone

    def rename(self, source: str, target: str) -> None:
        if source not in self._seen:
            raise FileNotFoundError(errno.ENOENT, errno.errorcode[errno.ENOENT], source)
        replaced = self._seen.get(target)
        if replaced is not None:
            self.give_space(len(replaced.seen))
        self._seen[target] = self._seen.pop(source)

    def sync_folder(self, path: str) -> None:
        self.faults.syncs += 1
        if self.strikes("sync_fails_in"):
            raise OSError(errno.EIO, errno.errorcode[errno.EIO])
        for other in [other for other in self._disk if _parent(other) == path]:
            if other not in self._seen:
                del self._disk[other]
        for other, inode in self._seen.items():
            if _parent(other) == path:
                self._disk[other] = inode

    def free_bytes(self) -> int:
        if self.faults.capacity_bytes is None:
            return _PLENTY_BYTES
        return max(0, self.faults.capacity_bytes - self.used_bytes)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _above(path: str) -> set[str]:
    """The folders above a path, with the root."""
    found = {""}
    while path := _parent(path):
        found.add(path)
    return found
