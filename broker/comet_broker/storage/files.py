"""The real file system behind the Files port: the only module that opens, syncs and renames.

    RealFiles(root)   one data folder, owned by one process, which locks it
    RealFile          one open file: appended to with writev, read at positions

An append is one system call. If it fails or stops short, the file is truncated to its earlier size, so that a batch is
either whole in the file or not there. If the truncation fails as well, `torn` stays true.

Measured on ext4: appends into space reserved ahead run two to three times as fast as into a file that grows with
each of them, so a log reserves in steps. Reserving exists on Linux only and is silently left out elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from comet.errors import DataFolderTaken, InvalidArgument
from comet_broker.ports import Buffer

LOCK_NAME: Final = "lock"
TEMPORARY: Final = ".tmp"
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE: reserve without a change of the file's size
# Only Linux can read cached bytes without blocking.
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)

Writev = Callable[[int, Sequence[Buffer]], int]


def _find_fallocate() -> Callable[[int, int, int], None] | None:
    """fallocate(2) for a descriptor, position and size: the os module only has the variant that extends the file."""
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def fallocate(descriptor: int, position: int, size: int) -> None:
        if function(descriptor, _KEEP_SIZE, position, size) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return fallocate


_fallocate: Final = _find_fallocate()


class RealFile:
    """ports.File over a descriptor opened for appending.

    Owned by one segment. `append`, `reserve`, `truncate` and `close` come from the thread that owns the log; reads
    and `sync` may come from others, also at the same time.
    """

    def __init__(self, descriptor: int, *, writev: Writev = os.writev) -> None:
        self._descriptor = descriptor
        self._writev = writev
        self._size = os.fstat(descriptor).st_size
        self._reserved = self._size
        self._torn = False

    @property
    def size(self) -> int:
        return self._size

    @property
    def torn(self) -> bool:
        return self._torn

    def append(self, parts: Sequence[Buffer]) -> None:
        total = 0
        for part in parts:
            total += len(part)
        try:
            written = self._writev(self._descriptor, parts)
            if written != total:
                self._append_rest(parts, written)
        except BaseException:
            self._cut_back()
            raise
        self._size += total

    def _append_rest(self, parts: Sequence[Buffer], written: int) -> None:
        """Continues after a short write until all is written, or a write fails or writes nothing."""
        rest = [memoryview(part) for part in parts]
        while True:
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if not rest:
                return
            rest[0] = rest[0][written:]
            written = self._writev(self._descriptor, rest)
            if written <= 0:
                raise OSError(errno.EIO, "a write wrote nothing")

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._size)
            if os.fstat(self._descriptor).st_size != self._size:
                self._torn = True
        except OSError:
            self._torn = True

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        while 0 < len(data) < size and (more := os.pread(self._descriptor, size - len(data), position + len(data))):
            data += more
        return data

    def read_into(self, position: int, into: memoryview) -> int:
        filled = 0
        while filled < len(into):
            got = os.preadv(self._descriptor, [into[filled:]], position + filled)
            if not got:
                break
            filled += got
        return filled

    def read_cached(self, position: int, into: memoryview) -> int:
        if _NOWAIT is None:
            return 0
        try:
            return os.preadv(self._descriptor, [into], position, _NOWAIT)
        except OSError:  # not in memory, not supported by the file system, or a true error, which `read` will raise
            return 0

    def reserve(self, size: int) -> None:
        if size <= self._reserved or _fallocate is None:
            return
        start = max(self._reserved, self._size)
        if size <= start:
            return
        try:
            _fallocate(self._descriptor, start, size - start)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._reserved = sys.maxsize  # this file system does not reserve: never try again
        else:
            self._reserved = size

    def forget_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = self._reserved = size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LinkFound(OSError):
    """A path in the data folder leads over a symbolic link, perhaps to files that are not the broker's."""


class RealFiles:
    """ports.Files below one folder of a real file system.

    The folder itself may be a symbolic link. One below it is never followed: it could have been planted there, to make
    the broker read or overwrite other files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = -1
        self._spare = _Spare()

    # ---- the lock of the folder

    def lock(self) -> None:
        """Locks the folder for this process until `unlock`, or until the process ends in any way."""
        assert self._lock < 0, "locked twice"
        self.root.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        self._refuse_links()
        descriptor = os.open(self.root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._taken(descriptor) from None
        except OSError:
            os.close(descriptor)
            raise
        self._lock = descriptor
        self._spare.take()
        with contextlib.suppress(OSError):  # the pid is for people; a broker starts on a full disk, too
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def _refuse_links(self) -> None:
        """Refuses a folder with a symbolic link at its top, where the metadata store has its files, too."""
        with os.scandir(self.root) as entries:
            links = sorted(entry.name for entry in entries if entry.is_symlink())
        if links:
            raise InvalidArgument(
                f"{self.root / links[0]} is a symbolic link, and the broker follows none in its data folder: put the"
                " file or folder itself there. The data folder may be a link",
                details={"path": str(self.root / links[0])},
            )

    def _at(self, path: str) -> Path:
        """The path in the file system. Raises LinkFound."""
        found = str(self.root)  # as text, because each sync of a log comes here, and steps of Path take longer
        for part in filter(None, path.split("/")):
            found = f"{found}/{part}"
            try:
                mode = os.lstat(found).st_mode
            except (FileNotFoundError, NotADirectoryError):
                break
            if stat.S_ISLNK(mode):
                raise LinkFound(errno.ELOOP, "a symbolic link, which the broker does not follow", found)
        return self.root / path

    def _taken(self, descriptor: int) -> DataFolderTaken:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        return DataFolderTaken(
            f"the data folder {self.root} is in use by another broker (process {holder}): "
            f"stop that one, or start this one with another data folder",
            details={"folder": str(self.root), "pid": holder},
        )

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)  # the file stays: removing it would let two processes lock two files of that name
            self._lock = -1
            self._spare.give()

    # ---- files

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        descriptor = os.open(self._at(path), flags, _FILE_MODE)
        try:
            return RealFile(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def read_all(self, path: str) -> bytes:
        return self._at(path).read_bytes()

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY
        try:
            file = self.open(temporary, create=True)
            try:
                file.truncate(0)  # after a crash it may hold bytes
                file.append((data,))
                file.sync()
            finally:
                file.close()
            self.rename(temporary, path)
        except OSError:
            self._at(temporary).unlink(missing_ok=True)
            raise
        self.sync_folder(_parent(path))

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def list(self, path: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(self._at(path)))  # noqa: PTH208 - names are what is wanted
        except FileNotFoundError:
            return ()

    def make_folder(self, path: str) -> None:
        """Creates the folder and its parents, and syncs each of them."""
        missing = []
        while path and not self._at(path).is_dir():
            missing.append(path)
            path = _parent(path)
        for folder in reversed(missing):
            self._at(folder).mkdir(mode=_FOLDER_MODE, exist_ok=True)
            self.sync_folder(_parent(folder))

    def remove(self, path: str) -> None:
        self._at(path).unlink()

    def remove_folder(self, path: str) -> None:
        shutil.rmtree(self._at(path))
        self.sync_folder(_parent(path))

    def rename(self, source: str, target: str) -> None:
        self._at(source).rename(self._at(target))

    def sync_folder(self, path: str) -> None:
        try:
            _sync_folder(self._at(path))
        except OSError as error:
            # A failed sync is final for a log, so it must not fail for lack of a descriptor.
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._spare.give():
                raise
            try:
                _sync_folder(self._at(path))
            finally:
                self._spare.take()

    def free_bytes(self) -> int:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize


class _Spare:
    """A file descriptor in reserve, for a process that has no others left."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._lock = threading.Lock()

    def take(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._descriptor < 0:
                self._descriptor = os.open(os.devnull, os.O_RDONLY)

    def give(self) -> bool:
        with self._lock:
            if self._descriptor < 0:
                return False
            os.close(self._descriptor)
            self._descriptor = -1
            return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
