"""The unit that is written once: the rows of one partition of one batch of a query. Pure.

    transactional id    spark.<query>.<partition>           one transaction of it per batch
    its note            batch 17 rows 2040 to bars          stored atomically with the commit
                        done rows 2040 to bars              without batches: df.write instead of a stream
                        done rows 2040                      if a column has the topic

A writer first opens the unit's id, which fences an earlier writer, and reads the note, which says whether the unit is
written. So a failure between the commit and Spark's own record of it does no harm.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from comet.errors import DataLoss, InvalidArgument

TOPIC_CHARS: Final = 180  # of a topic's name, so that a note has room for the rest
_NOTE: Final = re.compile(rb"(?:batch ([0-9]{1,19})|done) rows ([0-9]{1,19})(?: to ([A-Za-z0-9._-]{1,180}))?")


class Note(NamedTuple):
    """The note of a written unit."""

    batch: int | None
    rows: int
    topic: str = ""  # its first characters; empty: a column had it for each row

    def encode(self) -> bytes:
        to = f" to {self.topic[:TOPIC_CHARS]}" if self.topic else ""
        return f"{'done' if self.batch is None else f'batch {self.batch}'} rows {self.rows}{to}".encode()

    @classmethod
    def parse(cls, note: bytes) -> Note | None:
        """None for an unused id. Raises InvalidArgument for a foreign note."""
        if not note:
            return None
        found = _NOTE.fullmatch(note)
        if found is None:
            raise InvalidArgument(f"its transactional id is in use by another program, note {note[:60]!r}")
        return cls(None if found[1] is None else int(found[1]), int(found[2]), (found[3] or b"").decode())


class Unit(NamedTuple):
    """A unit; `batch` is None for a batch write."""

    query: str
    partition: int
    batch: int | None

    @property
    def transactional_id(self) -> str:
        return f"spark.{self.query}.{self.partition}"

    def __str__(self) -> str:
        what = self.query if self.batch is None else f"batch {self.batch} of {self.query}"
        return f"partition {self.partition} of {what}"

    def written(self, note: bytes, topic: str = "") -> int | None:
        """The number of its rows in the topic; None: it is not written. Raises DataLoss for a batch before the last, as
        Spark repeats only the last one; InvalidArgument for one that was written to another topic."""
        found = Note.parse(note)
        if found is None:
            return None
        if (found.batch is None) != (self.batch is None):
            kinds = ("a stream", "a batch write")
            raise InvalidArgument(
                f"{self} is {kinds[self.batch is None]}, but its transactional id is of {kinds[found.batch is None]}"
            )
        if self.batch is None or found.batch is None or found.batch == self.batch:
            if topic and found.topic and found.topic != topic[:TOPIC_CHARS]:
                raise InvalidArgument(self._elsewhere(found.topic, topic))
            return found.rows
        if found.batch > self.batch:
            raise DataLoss(
                f"{self} comes after batch {found.batch} was written: it is left over from an earlier run, or the "
                "checkpoint is older than the written batches. Start the query with a new checkpoint"
            )
        return None

    def _elsewhere(self, there: str, here: str) -> str:
        what = (
            "a batch write of other rows needs another transactionalId"
            if self.batch is None
            else "finish this batch with that topic before you change it"
        )
        return f"{self} was written to topic {there!r} before, and is now for {here!r}: {what}"

    def lacking(self, before: int, now: int) -> str:
        """The problem, if a unit was written with fewer rows than it has now; else empty."""
        if now <= before:
            return ""
        return (
            f"{self} was written before with {before} rows, and has {now} now; the topic lacks rows: a query must give "
            "the same rows for the same input and use its own newest checkpoint; a batch write of other rows needs "
            "another transactionalId"
        )
