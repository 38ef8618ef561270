"""Writes batches of updates into a topic, each once. For small batches: they are collected on the driver.

The note of the last transaction under a query's name has the batch's number. After a crash at any point, Spark repeats
the last batch, and the note tells whether it was written.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import comet

NOTE: Final = "batch "
CLOSE_S: Final = 5.0


class Updates:
    """Writes the batches of one query, from one start of it to the next. Used by the thread of Spark's batches."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._producer: comet.TransactionalProducer | None = None

    def write(self, batch: Any, number: int) -> None:
        """Writes a batch: a Spark DataFrame with the columns key and value. On an error Spark ends the query."""
        table = batch.toArrow()
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        keys, values = (table.column(name).to_pylist() for name in ("key", "value"))
        comet.sync.call(self.store(str(query), number, keys, values))

    async def store(self, query: str, number: int, keys: list[str], values: list[str]) -> None:
        """Writes a batch, unless it is written already: Spark repeats only the last one."""
        try:
            producer = await self._open(query)
            last = last_of(producer.note)
            if number < last:
                raise comet.DataLoss(
                    f"batch {number} of the query {query} comes after batch {last} was written: its checkpoint is "
                    "older than the written batches. Start with a new one"
                )
            if number == last:
                return
            async with producer.transaction() as transaction:
                transaction.note(f"{NOTE}{number}".encode())
                if values:
                    await transaction.send_many(
                        self._topic, [value.encode() for value in values], keys=[key.encode() for key in keys]
                    )
        except BaseException:
            await self.close()  # the note tells the outcome when the batch is repeated
            raise

    async def _open(self, query: str) -> comet.TransactionalProducer:
        if self._producer is None:
            self._producer = comet.TransactionalProducer(self._bootstrap, transactional_id=f"updates.{query}")
            await self._producer.start()
        return self._producer

    @property
    def connected(self) -> bool:
        """Whether there is something to close."""
        return self._producer is not None

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()


class Writers:
    """The `Updates` of all queries. Owned by the job; its thread starts and restarts the queries."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._of: dict[str, Updates] = {}

    def of(self, query: str, topic: str) -> Updates:
        """The writer for a start of the query. Closes the previous one, which would keep its connections open."""
        self._close(query)
        self._of[query] = Updates(self._bootstrap, topic)
        return self._of[query]

    def close(self) -> None:
        for query in list(self._of):
            self._close(query)

    def _close(self, query: str) -> None:
        updates = self._of.pop(query, None)
        if updates is not None:
            with suppress(comet.CometError):  # an unavailable broker times the transaction out later
                comet.sync.call(updates.close(), CLOSE_S)


def last_of(note: bytes) -> int:
    """The number of the last batch written; -1 before the first.

    >>> last_of(b"batch 17"), last_of(b"")
    (17, -1)
    """
    text = note.decode()
    return int(text.removeprefix(NOTE)) if text.startswith(NOTE) else -1
