"""The checkpoint of a log: the numbers that recovery relies on.

A journal of entries, 32 bytes each, little-endian:

     0  magic      4s   b"CKPT"
     4  zero       u32
     8  synced_end i64  all batches below this offset were on disk when the entry was written
    16  log_start  i64  the log begins no earlier than here
    24  zero       u32
    28  crc        u32  CRC-32C of bytes 0..28

With the magic b"MARK", the number at 8 is the high watermark that was known, and the one at 16 is zero.

All numbers only rise, so the highest of each over all whole entries counts. Entries are appended after each sync, and
not synced themselves: after the loss of one, recovery only treats more of the log as not synced.
An entry that must not be lost is written twice and synced, so that one flipped bit cannot bring deleted records back.
Only when a log is truncated do numbers fall: the whole journal is then replaced.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from comet_broker.ports import Files
from comet_broker.storage.layout import CHECKPOINT, CLEAN

ENTRY_BYTES: Final = 32
JOURNAL_BYTES_MAX: Final = 64 << 10

_ENTRY: Final = struct.Struct("<4s4xqq4xI")
_MAGIC: Final = b"CKPT"
_MARK_MAGIC: Final = b"MARK"
_CLEAN_MAGIC: Final = b"CLEN"
_CRC: Final = struct.Struct("<I")

assert _ENTRY.size == ENTRY_BYTES


class Checkpoint(NamedTuple):
    synced_end: int
    log_start: int
    high_watermark: int = 0  # 0: never noted


def _pack(magic: bytes, first: int, second: int) -> bytes:
    entry = _ENTRY.pack(magic, first, second, 0)
    return entry[: -_CRC.size] + _CRC.pack(crc32c(entry[: -_CRC.size]))


def _unpack(magic: bytes, entry: bytes) -> tuple[int, int] | None:
    if len(entry) != ENTRY_BYTES or crc32c(entry[: -_CRC.size]) != _CRC.unpack(entry[-_CRC.size :])[0]:
        return None
    found, first, second, _ = _ENTRY.unpack(entry)
    return (first, second) if found == magic else None


def read_checkpoint(files: Files, folder: str) -> Checkpoint | None:
    """Reads the checkpoint; None if there is none, or no entry of it is whole."""
    data = _read(files, f"{folder}/{CHECKPOINT}")
    entries = [
        entry
        for at in range(0, len(data), ENTRY_BYTES)
        if (entry := _unpack(_MAGIC, data[at : at + ENTRY_BYTES])) is not None
    ]
    if not entries:
        return None
    marks = (
        mark[0]
        for at in range(0, len(data), ENTRY_BYTES)
        if (mark := _unpack(_MARK_MAGIC, data[at : at + ENTRY_BYTES])) is not None
    )
    synced_ends, log_starts = zip(*entries, strict=True)
    return Checkpoint(max(synced_ends), max(log_starts), max(marks, default=0))


def _entries(checkpoint: Checkpoint) -> bytes:
    data = _pack(_MAGIC, checkpoint.synced_end, checkpoint.log_start)
    return data + _pack(_MARK_MAGIC, checkpoint.high_watermark, 0) if checkpoint.high_watermark else data


def replace_checkpoint(files: Files, folder: str, checkpoint: Checkpoint) -> None:
    """Replaces the journal. Durable when it returns."""
    files.write_atomic(f"{folder}/{CHECKPOINT}", 2 * _entries(checkpoint))


def raise_checkpoint(files: Files, folder: str, checkpoint: Checkpoint) -> None:
    """Appends an entry. Durable when it returns, mostly with one sync and no new block on the disk."""
    if not _append(files, folder, 2 * _entries(checkpoint), sync=True):
        replace_checkpoint(files, folder, checkpoint)


def append_checkpoint(files: Files, folder: str, checkpoint: Checkpoint) -> None:
    """Appends an entry without a sync: durable soon, at hardly any cost."""
    if not _append(files, folder, _entries(checkpoint), sync=False):
        replace_checkpoint(files, folder, checkpoint)


def _append(files: Files, folder: str, entries: bytes, *, sync: bool) -> bool:
    """Appends to the journal; False if it is missing or has reached its limit."""
    try:
        file = files.open(f"{folder}/{CHECKPOINT}")
    except FileNotFoundError:
        return False
    try:
        size = file.size
        if size >= JOURNAL_BYTES_MAX:
            return False
        # Entries are found at multiples of their size, also after one that was cut off.
        file.append((bytes(-size % ENTRY_BYTES), entries))
        if sync:
            file.sync()
        return True
    finally:
        file.close()


def write_clean_marker(files: Files, folder: str, log_end: int, last_segment_bytes: int) -> None:
    files.write_atomic(f"{folder}/{CLEAN}", _pack(_CLEAN_MAGIC, log_end, last_segment_bytes))


def read_clean_marker(files: Files, folder: str) -> tuple[int, int] | None:
    return _unpack(_CLEAN_MAGIC, _read(files, f"{folder}/{CLEAN}"))


def remove_clean_marker(files: Files, folder: str) -> None:
    """Removes the marker, durably: the log is open from now on, and a crash must not find it again."""
    path = f"{folder}/{CLEAN}"
    if files.exists(path):
        files.remove(path)
        files.sync_folder(folder)


def _read(files: Files, path: str) -> bytes:
    return files.read_all(path) if files.exists(path) else b""
