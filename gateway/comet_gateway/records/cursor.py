"""A cursor: how far somebody has come in one topic, as text that says all of it: any gateway can go on from there.

    c1.<topic id, 32 hex digits>.<partition>-<next offset>[-<epoch of the record before it>]. …

    c1.0f8e…c2.1-17-3.0-1042-3       partition 1 goes on at 17, partition 0 at 1042

The order of partitions means nothing; the one that moved last stands last, so that what is before it can be written
once for many records. A partition that is not named is begun at its earliest record: it was added later. For clients it
is opaque, and safe in a URL, a header and a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from comet_gateway.http.problems import Problem

CURSOR_CHARS_MAX: Final = 64 * 1024
INT64_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**32 - 1
PARTITIONS_MAX: Final = 100_000

_HEAD: Final = re.compile(r"c1\.([0-9a-f]{32})", re.ASCII)
_PLACE: Final = re.compile(r"(\d{1,6})-(\d{1,19})(?:-(\d{1,10}))?", re.ASCII)


class CursorPlace(NamedTuple):
    """Where one partition goes on."""

    offset: int
    epoch: int | None = None  # of the record before it, if one was seen


@dataclass(frozen=True, slots=True)
class Cursor:
    topic_id: bytes
    places: Mapping[int, CursorPlace]

    def __str__(self) -> str:
        return ".".join([f"c1.{self.topic_id.hex()}", *(place_text(index, *at) for index, at in self.places.items())])

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises Problem."""
        head, *rest = text[: CURSOR_CHARS_MAX + 1].split(".", 2)
        found = _HEAD.fullmatch(f"{head}.{rest[0]}") if rest and len(text) <= CURSOR_CHARS_MAX else None
        if found is None:
            raise Problem("MALFORMED_CURSOR", f"{text[:100]!r} is not a cursor")
        places: dict[int, CursorPlace] = {}
        for part in rest[1].split(".") if len(rest) > 1 else ():
            index, place = _place(part)
            if index in places:
                raise Problem("MALFORMED_CURSOR", f"a cursor that names partition {index} twice")
            places[index] = place
        return cls(bytes.fromhex(found[1]), places)


def place_text(partition: int, offset: int, epoch: int | None) -> str:
    return f"{partition}-{offset}" if epoch is None else f"{partition}-{offset}-{epoch}"


def _place(part: str) -> tuple[int, CursorPlace]:
    found = _PLACE.fullmatch(part)
    if found is not None:
        index, offset, epoch = int(found[1]), int(found[2]), None if found[3] is None else int(found[3])
        if index <= PARTITIONS_MAX and offset <= INT64_MAX and (epoch is None or epoch <= EPOCH_MAX):
            return index, CursorPlace(offset, epoch)
    raise Problem("MALFORMED_CURSOR", f"a cursor with {part[:100]!r} in it")
