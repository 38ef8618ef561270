"""Whether a task's input came to its end, or only stopped.

Rows come over a connection from the executor's JVM, as a stream of Arrow. Where the JVM is killed, or what computes the
rows fails, the connection ends, and Arrow takes that for the end of the stream: a task would commit half of its rows.
Behind a stream that is whole, Spark sends a word that it is over, which its worker reads when the task has returned.
Looking at whether it is there takes nothing from it.
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
    """The same; raises Closed behind the last one where there should have been more."""
    yield from batches
    if not connection().peek(1):
        raise Closed("Spark stopped sending the rows of this task before they were all there; nothing of it is written")


def connection() -> BufferedReader | BufferedRWPair:
    """The connection of this task's rows: Spark passes it to no writer, so it is looked up among the callers."""
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get(_CONNECTION) if frame.f_code.co_name == _WORKER else None
        if isinstance(found, BufferedReader | BufferedRWPair):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    raise UnsupportedVersion(
        "this version of Spark does not say whether a task has got all its rows, without which nothing can be written "
        "exactly once: take one that Comet was tested with, or set the option exactlyOnce=false"
    )
