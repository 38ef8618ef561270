"""Decoders of the values in the metadata store, for all threads.

msgspec prepares a class, with those of its fields, when it is first decoded. A thread that decodes such a class
meanwhile ends the process with a segmentation fault, so one thread at a time prepares.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import msgspec

_decoders: Final[dict[type, msgspec.json.Decoder[Any]]] = {}
_preparing: Final = threading.Lock()


def decoder_of(kind: type) -> msgspec.json.Decoder[Any]:
    found = _decoders.get(kind)
    if found is not None:
        return found
    with _preparing:
        return _decoders.setdefault(kind, msgspec.json.Decoder(kind))
