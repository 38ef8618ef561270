"""A second reader of record batches, written from proto/BATCH.md alone: slow, plain, one record after the other.

It shares no code with comet.records, so that the two can be held against each other.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import lz4.block
import zstandard
from crc32c import crc32c

FIELDS = (
    ("base_offset", "q"), ("append_time_us", "q"), ("leader_epoch", "I"), ("length", "I"), ("stamp_crc", "I"),
    ("crc", "I"), ("version", "B"), ("codec", "B"), ("flags", "H"), ("record_count", "I"), ("producer_id", "q"),
    ("base_sequence", "q"), ("min_timestamp_us", "q"), ("max_timestamp_us", "q"), ("last_offset_delta", "I"),
    ("producer_epoch", "I"), ("body_size", "I"), ("schema_id", "I"),
)  # fmt: skip


class Refused(Exception):
    """The bytes are no batch of this version."""


class FromTheFuture(Refused):
    """The bytes may be a batch of a later version."""


@dataclass
class Record:
    """One record, as a client sees it."""

    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    due: int | None = None
    expiry: int | None = None


def need(holds: bool, what: str) -> None:
    if not holds:
        raise Refused(what)


def read(data: bytes, *, stamped: bool = False) -> tuple[dict[str, int], list[Record]]:
    """The header and the records of the one batch that `data` begins with."""
    need(len(data) >= 88, "header")
    header: dict[str, int] = {}
    at = 0
    for name, kind in FIELDS:
        header[name] = struct.unpack_from("<" + kind, data, at)[0]
        at += struct.calcsize("<" + kind)
    check_header(header, len(data))
    need(crc32c(data[32 : header["length"]]) == header["crc"], "crc")
    need(not stamped or crc32c(data[:24]) == header["stamp_crc"], "stamp_crc")
    return header, Body(header, open_body(header, data[88 : header["length"]])).records()


def check_header(h: dict[str, int], available: int) -> None:
    if h["version"] != 1 or h["codec"] > 2 or h["flags"] > 1023:
        raise FromTheFuture
    n = h["record_count"]
    need(88 < h["length"] <= available, "length")
    need((0 if h["flags"] & 16 else 1) <= n <= 1_048_576, "record_count")
    need(h["body_size"] % 8 == 0 and 4 * n < h["body_size"] <= 32 * 1024 * 1024, "body_size")
    if h["codec"] == 0:
        need(h["length"] == 88 + h["body_size"], "length without codec")
    else:
        need(h["length"] < 88 + h["body_size"], "length with codec")
    need(bool(h["flags"] & 1) or not h["flags"] & 2, "KEY_NULLS needs KEYS")
    if h["flags"] == 256:
        need((h["codec"], n, h["producer_id"]) == (0, 1, 0) and 56 <= h["body_size"] <= 1080, "a compaction plan")
    elif h["flags"] & 256:
        need(h["flags"] == 128 + 256, "a marker has no other flags")
        need((h["codec"], n, h["base_sequence"], h["body_size"]) == (0, 1, 0, 24), "a marker is one value of 16 bytes")
    if h["flags"] & 128:
        need(h["producer_id"] > 0, "TRANSACTIONAL needs a producer")
    if h["flags"] & 512:
        need(h["producer_id"] > 0 and h["producer_epoch"] == 0, "KEYED needs a producer id alone")
        need(not h["flags"] & 128, "KEYED is part of no transaction")
    if h["flags"] & 16:
        need(n - 1 <= h["last_offset_delta"] < 1_048_576, "last_offset_delta")
    else:
        need(h["last_offset_delta"] == n - 1, "last_offset_delta")
    need(h["base_offset"] >= 0 and h["base_offset"] + h["last_offset_delta"] + 1 < 2**63, "base_offset")
    need(h["base_sequence"] >= 0 and h["base_sequence"] + h["last_offset_delta"] + 1 < 2**63, "base_sequence")
    need(h["producer_id"] >= 0, "producer_id")
    if h["producer_id"] == 0:
        need(h["base_sequence"] == 0 and h["producer_epoch"] == 0, "not idempotent")
    need(h["min_timestamp_us"] <= h["max_timestamp_us"], "timestamps")


def open_body(h: dict[str, int], stored: bytes) -> bytes:
    try:
        if h["codec"] == 1:
            body: bytes = lz4.block.decompress(stored, uncompressed_size=h["body_size"])
        elif h["codec"] == 2:
            need(zstandard.frame_content_size(stored) == h["body_size"], "zstd content size")
            body = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
        else:
            body = stored
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise Refused(str(error)) from None
    need(len(body) == h["body_size"], "body_size")
    return body


class Body:
    """Reads columns in order; every read checks that it stays inside."""

    def __init__(self, header: dict[str, int], body: bytes) -> None:
        self.header = header
        self.n = header["record_count"]
        self.body = body
        self.at = 0

    def buffer(self, size: int) -> bytes:
        need(self.at + size <= len(self.body), "buffer beyond the body")
        data = self.body[self.at : self.at + size]
        self.at += size
        while self.at % 8:
            need(self.at < len(self.body) and self.body[self.at] == 0, "padding")
            self.at += 1
        return data

    def numbers(self, kind: str, count: int) -> list[int]:
        size = struct.calcsize("<" + kind)
        data = self.buffer(size * count)
        return [struct.unpack_from("<" + kind, data, i * size)[0] for i in range(count)]

    def offsets(self, count: int) -> list[int]:
        offsets = self.numbers("i", count + 1)
        need(offsets[0] == 0, "offsets start at 0")
        for i in range(count):
            need(offsets[i] <= offsets[i + 1], "offsets never fall")
        return offsets

    def binary(self, count: int, *, nulls: bool = False) -> list[Any]:
        need(4 * count < len(self.body), "as many offsets as the body has room for")
        present = [True] * count
        if nulls:
            bitmap = self.buffer((count + 7) // 8)
            bits = [bool(byte >> bit & 1) for byte in bitmap for bit in range(8)]
            need(not any(bits[count:]), "bits beyond the last record")
            present = bits[:count]
        offsets = self.offsets(count)
        data = self.buffer(offsets[-1])
        values: list[bytes | None] = []
        for i in range(count):
            value = data[offsets[i] : offsets[i + 1]]
            need(present[i] or not value, "a null has no bytes")
            values.append(value if present[i] else None)
        return values

    def timestamps(self) -> list[int]:
        low, high = self.header["min_timestamp_us"], self.header["max_timestamp_us"]
        if low == high:
            return [low] * self.n
        need(self.n > 0, "one timestamp without records")
        timestamps = self.numbers("q", self.n)
        need(min(timestamps) == low and max(timestamps) == high, "timestamps")
        return timestamps

    def deltas(self) -> list[int]:
        if not self.header["flags"] & 16:
            return list(range(self.n))
        deltas = self.numbers("i", self.n)
        need(not deltas or (deltas[0] >= 0 and deltas[-1] <= self.header["last_offset_delta"]), "offset deltas")
        for i in range(self.n - 1):
            need(deltas[i] < deltas[i + 1], "offset deltas rise")
        return deltas

    def headers(self) -> list[list[tuple[str, bytes]]]:
        if not self.header["flags"] & 8:
            return [[] for _ in range(self.n)]
        ends = self.offsets(self.n)
        names, values = self.binary(ends[-1]), self.binary(ends[-1])
        try:
            pairs = [(name.decode("utf-8"), value) for name, value in zip(names, values, strict=True)]
        except UnicodeDecodeError:
            raise Refused("header name") from None
        return [pairs[ends[i] : ends[i + 1]] for i in range(self.n)]

    def records(self) -> list[Record]:
        flags = self.header["flags"]
        timestamps, deltas = self.timestamps(), self.deltas()
        due = self.numbers("q", self.n) if flags & 32 else [None] * self.n
        expiry = self.numbers("q", self.n) if flags & 64 else [None] * self.n
        keys = self.binary(self.n, nulls=bool(flags & 2)) if flags & 1 else [None] * self.n
        values = self.binary(self.n, nulls=bool(flags & 4))
        headers = self.headers()
        need(self.at == len(self.body), "bytes after the last column")
        base = self.header["base_offset"]
        return [
            Record(base + deltas[i], timestamps[i], keys[i], values[i], headers[i], due[i], expiry[i])
            for i in range(self.n)
        ]
