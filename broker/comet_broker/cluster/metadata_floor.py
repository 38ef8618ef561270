"""The file `floor` at the data folder's root: the folder's knowledge of the metadata store; see core.lineage.

It holds one line:

    <CRC-32C of the rest, 8 hex digits> <JSON: cluster_id, mark, revision, recoveries, mine, epochs, changed>
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from comet.errors import StoreDamaged
from comet_broker.core.lineage import Floor
from comet_broker.ports import Files

FILE: Final = "floor"
_CRC_DIGITS: Final = 8


def read_floor(files: Files) -> Floor | None:
    """The floor; None for a folder without one. Blocks. Raises StoreDamaged."""
    if not files.exists(FILE):
        return None
    crc, _, rest = files.read_all(FILE).partition(b" ")
    if len(crc) == _CRC_DIGITS and crc == f"{crc32c(rest):08x}".encode():
        return Floor.decode(rest)
    raise StoreDamaged(
        f"the file {FILE!r} in the data folder is damaged, so this broker cannot check whether the metadata store went"
        " back in time. If you are sure that it did not, delete the file: the broker then starts as after a power cut"
    )


def write_floor(files: Files, floor: Floor) -> None:
    """Replaces the file. Blocks; raises OSError."""
    rest = floor.encode() + b"\n"
    files.write_atomic(FILE, f"{crc32c(rest):08x} ".encode() + rest)
