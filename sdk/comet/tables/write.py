"""Writing the rows of a table as records: comet.write_frame.

table ─► its schema is checked ─► chunks of rows ─► values, keys, times ─► send_many, a few chunks ahead
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from comet.client.bootstrap import Addresses
from comet.errors import InvalidArgument, pip_install
from comet.types import check_topic_name

if TYPE_CHECKING:
    import pyarrow

ROWS: Final = 1 << 13  # per chunk
AHEAD: Final = 8  # chunks in flight; the producer's buffer is another bound


def write_frame(
    frame: Any,
    topic: str,
    *,
    key: str | None = None,
    value: str | Iterable[str] | None = None,
    type: Any = None,  # noqa: A002 - the name users expect
    timestamp: str | None = None,
    bootstrap: Addresses = None,
    **settings: Any,
) -> int:
    """Writes each row as a record, and returns their number. Needs pyarrow.

    `frame` is a pyarrow.Table, a polars or pandas DataFrame (without its index), a comet.Scan, or anything else that is
    an Arrow stream. Values are JSON objects of all columns, or of those that `value` lists; if it is one name, that
    column's text or bytes. With `type`, rows are checked against the class and get its defaults. `key`
    names a column of text or bytes, `timestamp` one of times, or of microseconds since 1970. `settings` are those of
    comet.Producer.

    Rows of one key keep their order. A float that is not a number, and pandas' NaN, become null; times are written to
    the microsecond. Raises InvalidArgument, before anything is written, for unknown columns or columns of the
    wrong type; SerdeError at the first invalid row, when rows before it may be written.

    >>> import polars as pl
    >>> bars = pl.DataFrame({"symbol": ["EURUSD", "USDJPY"], "close": [1.08, 155.2]})
    >>> comet.write_frame(bars, "quotes", key="symbol", bootstrap=address)
    2
    >>> comet.read("quotes", columns=["key", "value"], bootstrap=address).to_polars().rows()[0]
    (b'EURUSD', b'{"symbol":"EURUSD","close":1.08}')
    """
    from comet.sync import BulkDelivery, Producer

    check_topic_name(topic)
    reader = _stream(frame)
    from comet.tables.rows import plan_of

    plan = plan_of(reader.schema, key=key, value=value, kind=type, timestamp=timestamp)
    written = 0
    sent: deque[BulkDelivery] = deque()
    with Producer(bootstrap, **settings) as producer:
        for chunk in _chunks(reader):
            rows = plan.rows(chunk, written)
            sent.append(producer.send_many(topic, rows.values, keys=rows.keys, timestamps_us=rows.timestamps_us))
            written += len(rows.values)
            if len(sent) > AHEAD:
                sent.popleft().result()
        for delivery in sent:
            delivery.result()
    return written


def _stream(frame: Any) -> pyarrow.RecordBatchReader:
    """Converts any kind of table to batches."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(f"write_frame() needs pyarrow: {pip_install('arrow')}") from error
    if isinstance(frame, pa.RecordBatchReader):
        return frame
    if _module_of(frame) == "pandas" and hasattr(frame, "columns"):
        frame = _of_pandas(frame)
    if not hasattr(frame, "__arrow_c_stream__"):
        advice = "; collect() it first" if hasattr(frame, "collect") else ""
        raise InvalidArgument(
            "frame must be a pyarrow.Table, a polars or pandas DataFrame, or another Arrow stream, "
            f"not {type(frame).__module__}.{type(frame).__qualname__}{advice}"
        )
    try:
        return pa.RecordBatchReader.from_stream(frame)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidArgument(f"a frame must have named columns: {error}") from error


def _module_of(frame: Any) -> str:
    return type(frame).__module__.partition(".")[0]


def _of_pandas(frame: Any) -> pyarrow.Table:
    import pyarrow as pa

    odd = [name for name in frame.columns if not isinstance(name, str)]
    if odd:
        raise InvalidArgument(f"column names must be text, not {odd[0]!r}")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"a column has several types: {'; '.join(map(str, error.args))}") from error


def _chunks(reader: pyarrow.RecordBatchReader) -> Iterator[pyarrow.RecordBatch]:
    for batch in reader:
        for at in range(0, batch.num_rows, ROWS):
            yield batch.slice(at, ROWS)
