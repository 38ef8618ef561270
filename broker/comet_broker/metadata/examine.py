"""Checks a store file before it is trusted, and keeps the backup.

    metadata.db            the store                       metadata.db-wal   its write-ahead log, while it is open
    metadata.db.backup     the last state found sound      metadata.db.copy  a copy in the making

Opening a store copies both its files and checks the copy: structure, checksums, and the write-ahead log for commits
that SQLite would skip. So a damaged store stays exactly as it was found, for its restoration, and a sound copy becomes
the backup at no further cost.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

from comet.errors import StoreDamaged
from comet_broker.metadata.sqlite import StoreFile, create, log_of

_LOG_MAGIC = (0x377F0682, 0x377F0683)
_LOG_VERSION = 3007000
_LOG_HEADER = struct.Struct(">IIII8sII")  # magic, version, page size, checkpoint number, salts, checksum
_FRAME_HEADER = struct.Struct(">II8s8s")  # page number, pages after a commit (0: no commit), salts, checksum


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".backup")


def restore_command(path: Path) -> str:
    """The shell command that puts the backup in the store's place and keeps the damaged files beside it."""
    store, log, backup = (shlex.quote(str(p)) for p in (path, log_of(path), backup_of(path)))
    return f"for f in {store} {log}; do if [ -e $f ]; then mv $f $f.damaged; fi; done; cp {backup} {store}"


def prepare(path: Path) -> None:
    """Ensures a sound store at the path: a new one if there never was one, else the existing one, with a fresh backup
    beside it. Raises StoreDamaged with instructions."""
    if path.exists():
        _examine(path)
    elif backup_of(path).exists() or log_of(path).exists():
        raise damaged(path, f"{path} is missing")
    else:
        new = path.with_name(path.name + ".copy")
        _remove(new)
        create(new)
        _install(new, path)


def replace_backup(file: StoreFile) -> None:
    """Updates the backup of an open store."""
    copy = file.path.with_name(file.path.name + ".copy")
    _remove(copy)
    file.copy_to(copy)
    _install(copy, backup_of(file.path))


def damaged(path: Path, what: str) -> StoreDamaged:
    """The error for an unusable store, with the command that restores the backup."""
    if not backup_of(path).exists():
        return StoreDamaged(f"{what}. There is no backup; nothing was changed")
    command = restore_command(path)
    return StoreDamaged(
        f"{what}. Nothing was changed. A backup of an earlier state is in {backup_of(path)}; to go back to it, run\n"
        f"    {command}\nTopics created since then will be missing; their data stays on disk",
        details={"restore": command, "backup": str(backup_of(path))},
    )


def _examine(path: Path) -> None:
    copy = path.with_name(path.name + ".copy")
    _remove(copy)
    try:
        _copy(path, copy)
        if log_of(path).exists():
            _copy(log_of(path), log_of(copy))
        commits = list(_commits(log_of(copy)))
        file = StoreFile(copy)
        try:
            readable = file.log_frames()
            file.load()
            _check_structure(file, path)
            _check_log(readable, commits, path)
        finally:
            file.close()
        _install(copy, backup_of(path))
    except StoreDamaged as error:
        raise damaged(path, error.message.replace(str(copy), str(path))) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, f"{path} cannot be read: {error}") from error
    finally:
        _remove(copy)


def _check_structure(file: StoreFile, path: Path) -> None:
    """Runs SQLite's own check: unreachable rows, pages that two trees claim."""
    if problems := file.structure_problems():
        raise StoreDamaged(f"{path} is damaged: {problems}")


def _check_log(readable: int, commits: list[int], path: Path) -> None:
    """Checks the write-ahead log for skipped commits.

    SQLite reads its log up to the first frame that fails a checksum, and skips the rest silently. A commit is synced
    before the next one begins, so a crash can leave one unfinished commit at the end. Further commits beyond the
    readable part were acknowledged, so the log before them is damaged."""
    passed_over = [frame for frame in commits if frame > readable]
    if len(passed_over) > 1:
        raise StoreDamaged(f"{log_of(path)} is damaged: {len(passed_over)} commits in it cannot be read")


def _commits(log: Path) -> Iterator[int]:
    """The numbers, from 1, of the frames that end a commit, whether or not their checksums hold."""
    data = log.read_bytes() if log.exists() else b""
    if len(data) < _LOG_HEADER.size + _FRAME_HEADER.size:
        return  # it has no commits: SQLite syncs the header before it writes the first frame
    magic, version, page_bytes, *_, sum1, sum2 = _LOG_HEADER.unpack_from(data)
    if magic not in _LOG_MAGIC or version != _LOG_VERSION or (sum1, sum2) != _header_sums(data, magic):
        raise StoreDamaged(f"{log} is damaged: its header cannot be read")
    positions = range(_LOG_HEADER.size, len(data) - _FRAME_HEADER.size + 1, _FRAME_HEADER.size + page_bytes)
    for number, position in enumerate(positions, 1):
        if _FRAME_HEADER.unpack_from(data, position)[1]:
            yield number


def _header_sums(data: bytes, magic: int) -> tuple[int, int]:
    """SQLite's checksum of the log's header; the magic number says in which byte order it was computed."""
    words = struct.unpack_from((">" if magic & 1 else "<") + "6I", data)
    sum1 = sum2 = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum1 = (sum1 + first + sum2) & 0xFFFFFFFF
        sum2 = (sum2 + second + sum1) & 0xFFFFFFFF
    return sum1, sum2


def _copy(source: Path, target: Path) -> None:
    target.touch(mode=0o600)
    shutil.copyfile(source, target)


def _install(source: Path, target: Path) -> None:
    """Gives a complete file its name, durably."""
    with source.open("rb") as file:
        os.fsync(file.fileno())
    source.rename(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    log_of(path).unlink(missing_ok=True)
