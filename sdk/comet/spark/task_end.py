"""Checks that a task's input is complete.

Rows come over a connection from the executor's JVM, as an Arrow stream. If the JVM is killed or the computation of the
rows fails, the connection ends, and Arrow takes that for the end of the stream: a task would commit half of its rows.
After a complete stream Spark sends an end mark, which its worker reads when the task has returned. The check peeks at
this mark without reading it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from io import BufferedReader, BufferedRWPair
from typing import TYPE_CHECKING, Final

from comet.errors import Closed, UnsupportedVersion

if TYPE_CHECKING:
    import pyarrow as pa

_WORKER: Final = "main"  # the function of Spark's worker, and its name for the connection
_CONNECTION: Final = "infile"


def whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches; raises Closed after the last one if the input is incomplete."""
    yield from batches
    if not connection().peek(1):
        raise Closed("Spark ended the input of this task early; its rows are not written")


def connection() -> BufferedReader | BufferedRWPair:
    """The connection of this task's rows. Spark does not pass it to writers, so it is taken from a caller's frame."""
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get(_CONNECTION) if frame.f_code.co_name == _WORKER else None
        if isinstance(found, BufferedReader | BufferedRWPair):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    raise UnsupportedVersion(
        "this version of Spark does not mark the end of a task's rows, which exactly-once writes need: use a version "
        "that Comet was tested with, or set the option exactlyOnce=false"
    )
