"""Reading a topic, or a part of it, as tables: comet.read.

plain code      call parts on the background loop ─► columns, in the caller's thread
asynchronous    parts on the running loop ─► columns, in a thread beside it
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from comet import limits
from comet.client.bootstrap import Addresses
from comet.consumer.options import Isolation, check_isolation, check_on_corrupt, parsed_filter
from comet.encryption.keyring import Keyring
from comet.errors import InvalidArgument, pip_install
from comet.event_loop import call
from comet.tables.scan_ranges import Bound, Part, ScanRequest, parts
from comet.types import check_topic_name, wall_clock_us
from comet.wire.corrupt import OnCorrupt

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def read(
    topic: str,
    *,
    bootstrap: Addresses = None,
    start: Bound = "earliest",
    end: Bound = "latest",
    partitions: Iterable[int] | None = None,
    type: Any = None,  # noqa: A002 - the name users expect
    columns: Iterable[str] | None = None,
    records_max: int | None = None,
    isolation: Isolation = "committed",
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
    on_corrupt: OnCorrupt = "raise",
    encryption: Keyring | None = None,
    filter: str = "",  # noqa: A002 - the name of the option everywhere
) -> Scan:
    """A topic as tables: its records from `start` up to, not including, `end`. Needs pyarrow.

    Both positions are "earliest", "latest", an offset, a time (datetime, or text such as "2026-01-31T12:00:00Z"), or
    a time ago ("-15m"); or one of these for each partition, as `{0: 42, 1: "latest"}`. The end is fixed at the start.

    Without `type` the columns are key, value, topic, partition, offset and timestamp. With a model or a
    pyarrow.Schema, the fields of the values are columns, instead of `value`. `columns` selects some, and only these are
    decoded; "headers" is there only if selected. `records_max` is divided among the partitions. A corrupt batch
    raises CorruptRecords; with `on_corrupt="skip"` it is logged, and left out. With `encryption`, a Keyring, values are
    decrypted; one that cannot be raises DecryptionError. With `filter`, a condition such as "price > 100", only records
    that match are rows; `records_max` counts offsets then.

    >>> with comet.sync.Producer(address) as producer:
    ...     _ = producer.send_many("quotes", [{"symbol": "EURUSD", "bid": 1.08}, {"symbol": "USDJPY", "bid": 155.2}])
    >>> @comet.model
    ... class Quote:
    ...     symbol: str
    ...     bid: float
    >>> quotes = comet.read("quotes", start="-1h", type=Quote, bootstrap=address)
    >>> quotes.to_polars().select("offset", "symbol", "bid").rows()
    [(0, 'EURUSD', 1.08), (1, 'USDJPY', 155.2)]
    """
    from comet.values.arrow_columns import ArrowColumns

    if records_max is not None and (not isinstance(records_max, int) or records_max < 1):
        raise InvalidArgument(f"records_max must be at least 1, not {records_max!r}")
    check_isolation(isolation)
    check_on_corrupt(on_corrupt)
    chosen = None if partitions is None else tuple(partitions)
    request = ScanRequest(
        check_topic_name(topic), start, end, chosen, records_max, isolation, timeout_ms, on_corrupt, encryption,
        parsed_filter(filter, now_us=wall_clock_us()),
    )  # fmt: skip
    return Scan(bootstrap, request, ArrowColumns(type, columns))


class Scan:
    """The result of comet.read. It reads only when tables are requested; each request is a new read.

    In plain code, and in notebooks, call `to_polars()`, `to_pandas()` or `to_arrow()`, or go through `batches()`, which
    holds a few megabytes for any size. Other libraries take it as an Arrow stream, as `polars.DataFrame(scan)`
    does. On an event loop `await scan` gives the table, and `async for` the batches.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     table = await comet.read("quotes", columns=["offset", "value"], bootstrap=address)
    ...     print(table.to_pylist()[0])
    ...     async for batch in comet.read("quotes", start=1, bootstrap=address):
    ...         print(batch.num_rows)
    >>> run(example)
    {'offset': 0, 'value': b'1'}
    2
    """

    def __init__(self, addresses: Addresses, request: ScanRequest, columns: Any) -> None:
        self._addresses = addresses
        self._request = request
        self._columns = columns

    def __repr__(self) -> str:
        request = self._request
        return f"<Scan of {request.topic} from {request.start!r} to {request.end!r}>"

    @property
    def schema(self) -> pyarrow.Schema:
        """The schema of its tables."""
        return self._columns.schema

    # ---- plain code

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Iterates over batches of up to 65,536 rows; a few megabytes of them are in memory."""
        from comet.values.arrow_columns import BatchMerger

        gathering = BatchMerger(self._columns)
        coming = parts(self._addresses, self._request)
        try:
            while (part := call(_next(coming))) is not None:
                yield from gathering.add(part)
            yield from gathering.rest()
        finally:
            if not sys.is_finalizing():  # else it ends with the program
                call(_closed(coming))

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        return self.batches()

    def to_arrow(self) -> pyarrow.Table:
        """The whole scan as a pyarrow.Table."""
        return self._table(self.batches())

    def to_polars(self) -> polars.DataFrame:
        """The whole scan as a polars.DataFrame."""
        try:
            import polars as pl
        except ImportError as error:
            raise ImportError(f"to_polars() needs polars: {pip_install('arrow', 'polars')}") from error
        found = pl.from_arrow(self.to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """The whole scan as a pandas.DataFrame. `options` are those of pyarrow.Table.to_pandas."""
        try:
            import pandas  # noqa: F401 - only checks that it is installed
        except ImportError as error:
            raise ImportError(f"to_pandas() needs pandas: {pip_install('arrow', 'pandas')}") from error
        return self.to_arrow().to_pandas(**options)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The batches for any library that reads Arrow streams."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def _table(self, batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
        import pyarrow as pa

        return pa.Table.from_batches(list(batches), schema=self.schema)

    # ---- on a running loop

    async def __aiter__(self) -> AsyncIterator[pyarrow.RecordBatch]:
        import asyncio

        from comet.values.arrow_columns import BatchMerger

        gathering = BatchMerger(self._columns)
        coming = parts(self._addresses, self._request)
        try:
            async for part in coming:
                for batch in await asyncio.to_thread(gathering.add, part):
                    yield batch
            for batch in gathering.rest():
                yield batch
        finally:
            await _closed(coming)

    def __await__(self) -> Generator[Any, None, pyarrow.Table]:
        return self._awaited().__await__()

    async def _awaited(self) -> pyarrow.Table:
        return self._table([batch async for batch in self])


async def _next(coming: AsyncIterator[Part]) -> Part | None:
    return await anext(coming, None)


async def _closed(coming: Any) -> None:
    await coming.aclose()
