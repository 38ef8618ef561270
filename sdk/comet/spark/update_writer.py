"""Writes the changed rows of a stream into a topic, each batch once: a function for `foreachBatch`, in update mode.

Spark gives update mode to no sink in Python. This writer collects a batch on the driver, so it is for small batches,
such as the changed windows of an aggregation; for large ones write with `format("comet")` and a `transactionalId`
within the function (docs/spark.md).

The note of the last transaction under a query's id has the batch's number. After a crash at any point, Spark repeats
the last batch, and the note tells whether it was written.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import comet
from comet.client.bootstrap import Addresses

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTE: Final = "batch "
CLOSE_S: Final = 5.0


class UpdateWriter:
    """Writes the batches of one query, over all its starts. Used by the thread of Spark's batches.

        with UpdateWriter("localhost:9092", "bars") as bars:
            frame.writeStream.outputMode("update").foreachBatch(bars.write).option("checkpointLocation", …).start()

    The rows have the columns key and value, as strings. The topic has to be consistent: it takes transactions. With
    `encryption`, a Keyring, values are encrypted.
    """

    def __init__(self, bootstrap: Addresses, topic: str, *, encryption: comet.Keyring | None = None) -> None:
        self._bootstrap = bootstrap
        self._encryption = encryption
        self._topic = topic
        self._query = ""
        self._producer: comet.TransactionalProducer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(comet.CometError):  # an unavailable broker times the transaction out later
            comet.sync.call(self.close(), CLOSE_S)

    def write(self, batch: Any, number: int) -> None:
        """Writes a batch: a Spark DataFrame with the columns key and value. On an error Spark ends the query."""
        table = batch.toArrow()
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        keys, values = (table.column(name).to_pylist() for name in ("key", "value"))
        comet.sync.call(self.store(str(query), number, keys, values))

    async def store(self, query: str, number: int, keys: Sequence[str], values: Sequence[str]) -> None:
        """Writes a batch of the query with this id, unless it is written already: Spark repeats only the last one."""
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
        if self._producer is None or self._query != query:
            await self.close()
            self._query = query
            self._producer = comet.TransactionalProducer(
                self._bootstrap, transactional_id=f"updates.{query}", encryption=self._encryption
            )
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


def last_of(note: bytes) -> int:
    """The number of the last batch written; -1 before the first.

    >>> last_of(b"batch 17"), last_of(b"")
    (17, -1)
    """
    text = note.decode()
    return int(text.removeprefix(NOTE)) if text.startswith(NOTE) else -1
