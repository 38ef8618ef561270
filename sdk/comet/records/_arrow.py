"""A decoded batch as a pyarrow.RecordBatch over the same memory.

Arrow trusts the offsets that it is handed, so every array is fully validated before it leaves this module, by
Arrow's own code, which does it faster than ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comet.errors import CorruptBatch, InvalidArgument

if TYPE_CHECKING:
    from comet.records._batch import Batch
    from comet.records._columns import Binary

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise ImportError('to_arrow() needs pyarrow: pip install "comet-stream[arrow]"') from error
