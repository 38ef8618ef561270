"""The file `topic` in topics/<id>/: the topic's name and settings, as the metadata store had them last.

It holds one line, `<CRC-32C of the rest, 8 hex digits> <JSON: name, spec>`. Only a recovery of the cluster reads it,
for a metadata store that was emptied; so a damaged or missing file is not an error.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from crc32c import crc32c

from comet_broker.core.recovery import NamedSpec
from comet_broker.ports import Files

log = logging.getLogger(__name__)

FILE: Final = "topic"
_CRC_DIGITS: Final = 8


def read_spec(files: Files, folder: str) -> NamedSpec | None:
    """Blocks; raises OSError."""
    path = f"{folder}/{FILE}"
    if not files.exists(path):
        return None
    crc, _, rest = files.read_all(path).partition(b" ")
    if len(crc) != _CRC_DIGITS or crc != f"{crc32c(rest):08x}".encode():
        log.warning("%s is damaged, and ignored", path)
        return None
    try:
        return NamedSpec.decode(rest)
    except msgspec.DecodeError as error:
        log.warning("%s cannot be read: %s", path, error)
        return None


def write_spec(files: Files, folder: str, named: NamedSpec) -> None:
    """Replaces the file. Blocks; raises OSError."""
    rest = named.encode() + b"\n"
    files.write_atomic(f"{folder}/{FILE}", f"{crc32c(rest):08x} ".encode() + rest)


def forget_spec(files: Files, folder: str) -> None:
    """Removes the file, when no partition of the topic is here any more. Blocks; raises OSError."""
    if files.exists(f"{folder}/{FILE}"):
        files.remove(f"{folder}/{FILE}")
