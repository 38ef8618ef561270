"""The unit that is written once: the rows of one partition of one batch of a query. Pure.

    transactional id    spark.<query>.<partition>           one transaction of it per batch
    its note            batch 17 rows 2040 to bars          kept as one with the decision to commit
                        done rows 2040 to bars              where there is only one batch: a write that is no stream
                        done rows 2040                      where a column says to which topic

A writer opens the unit's id first, which fences a writer before it, and reads the note, which says
whether the unit is written. What is between an end that was decided and Spark's own note of it does not matter then.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from comet.errors import DataLoss, InvalidArgument

TOPIC_CHARS: Final = 180  # of a topic's name, so that a note has room for the rest
_NOTE: Final = re.compile(rb"(?:batch ([0-9]{1,19})|done) rows ([0-9]{1,19})(?: to ([A-Za-z0-9._-]{1,180}))?")


class Note(NamedTuple):
    """Of a unit that is written."""

    batch: int | None
    rows: int
    topic: str = ""  # its first characters; empty: a column said it for each row

    def encode(self) -> bytes:
        to = f" to {self.topic[:TOPIC_CHARS]}" if self.topic else ""
        return f"{'done' if self.batch is None else f'batch {self.batch}'} rows {self.rows}{to}".encode()

    @classmethod
    def parse(cls, note: bytes) -> Note | None:
        """None for an id that nothing was written under. Raises InvalidArgument for an id with a foreign note."""
        if not note:
            return None
        found = _NOTE.fullmatch(note)
        if found is None:
            raise InvalidArgument(f"its transactional id is used for something else, which noted {note[:60]!r}")
        return cls(None if found[1] is None else int(found[1]), int(found[2]), (found[3] or b"").decode())


class Unit(NamedTuple):
    """`batch` is None where there is only one."""

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
        """How many rows it has in the topic; None: it is not written. Raises DataLoss for what never comes again, as
        Spark repeats the last batch of a query, and none before it; InvalidArgument for what went to another topic."""
        found = Note.parse(note)
        if found is None:
            return None
        if (found.batch is None) != (self.batch is None):
            kinds = ("a stream", "a batch write")
            raise InvalidArgument(
                f"{self} has the transactional id of {kinds[found.batch is None]}, and is {kinds[self.batch is None]}"
            )
        if self.batch is None or found.batch is None or found.batch == self.batch:
            if topic and found.topic and found.topic != topic[:TOPIC_CHARS]:
                raise InvalidArgument(self._elsewhere(found.topic, topic))
            return found.rows
        if found.batch > self.batch:
            raise DataLoss(
                f"{self} comes after batch {found.batch} was written: either it is left over from an earlier run, or "
                "the checkpoint is older than what was written since. Start a query with a new checkpoint"
            )
        return None

    def _elsewhere(self, there: str, here: str) -> str:
        what = (
            "a batch write of other rows needs another transactionalId"
            if self.batch is None
            else "run the query with that topic until this batch is over, and change it then"
        )
        return f"{self} was written to the topic {there!r} before, and is for {here!r} now: {what}"

    def lacking(self, before: int, now: int) -> str:
        """What is wrong with a unit that was written with fewer rows than it has now; empty: nothing."""
        if now <= before:
            return ""
        return (
            f"{self} was written before with {before} rows, and has {now} now, so that rows are missing in the topic: "
            "a query has to give the same rows for the same input, and its checkpoint must be its own newest one; a "
            "batch write with other rows needs another transactionalId"
        )
