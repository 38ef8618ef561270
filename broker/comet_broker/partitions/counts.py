"""The numbers of records and bytes that went through one partition since this broker opened it."""

from __future__ import annotations

from comet.records import BatchHeader


class RecordCounts:
    __slots__ = (
        "appended_batches",
        "appended_bytes",
        "appended_records",
        "delivered_bytes",
        "delivered_records",
        "followed_bytes",
        "followed_records",
    )

    def __init__(self) -> None:
        self.appended_batches = 0
        self.appended_records = 0
        self.appended_bytes = 0
        self.followed_records = 0  # the appended ones that came from a leader
        self.followed_bytes = 0
        self.delivered_records = 0  # to clients
        self.delivered_bytes = 0

    def appended(self, header: BatchHeader) -> None:
        self.appended_batches += 1
        self.appended_records += header.record_count
        self.appended_bytes += header.length

    def followed(self, header: BatchHeader) -> None:
        """Counts a batch that a leader has sent."""
        self.appended(header)
        self.followed_records += header.record_count
        self.followed_bytes += header.length

    def delivered(self, records: int, size_bytes: int) -> None:
        self.delivered_records += records
        self.delivered_bytes += size_bytes
