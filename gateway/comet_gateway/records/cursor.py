"""A cursor: a client's positions in one topic, as text. Any gateway can resume from it.

    c1.<topic id, 32 hex digits>.<partition>-<next offset>[-<epoch of the record before it>]. …

    c1.0f8e…c2.1-17-3.0-1042-3       partition 1 resumes at 17, partition 0 at 1042

The order of partitions has no meaning; the one that moved last comes last, so that the text before it is shared by many
records. A partition that is not named was added later, and is read from its earliest record. For clients a cursor is
opaque, and safe in a URL, a header and a file.
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
_POSITION: Final = re.compile(r"(\d{1,6})-(\d{1,19})(?:-(\d{1,10}))?", re.ASCII)


class CursorPosition(NamedTuple):
    """The position in one partition."""

    offset: int
    epoch: int | None = None  # of the record before it, if known


@dataclass(frozen=True, slots=True)
class Cursor:
    topic_id: bytes
    positions: Mapping[int, CursorPosition]

    def __str__(self) -> str:
        return ".".join(
            [f"c1.{self.topic_id.hex()}", *(position_text(index, *at) for index, at in self.positions.items())]
        )

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parses a cursor. Raises Problem."""
        head, *rest = text[: CURSOR_CHARS_MAX + 1].split(".", 2)
        found = _HEAD.fullmatch(f"{head}.{rest[0]}") if rest and len(text) <= CURSOR_CHARS_MAX else None
        if found is None:
            raise Problem("MALFORMED_CURSOR", f"{text[:100]!r} is not a cursor")
        positions: dict[int, CursorPosition] = {}
        for part in rest[1].split(".") if len(rest) > 1 else ():
            index, position = _position(part)
            if index in positions:
                raise Problem("MALFORMED_CURSOR", f"the cursor names partition {index} twice")
            positions[index] = position
        return cls(bytes.fromhex(found[1]), positions)


def position_text(partition: int, offset: int, epoch: int | None) -> str:
    return f"{partition}-{offset}" if epoch is None else f"{partition}-{offset}-{epoch}"


def _position(part: str) -> tuple[int, CursorPosition]:
    found = _POSITION.fullmatch(part)
    if found is not None:
        index, offset, epoch = int(found[1]), int(found[2]), None if found[3] is None else int(found[3])
        if index <= PARTITIONS_MAX and offset <= INT64_MAX and (epoch is None or epoch <= EPOCH_MAX):
            return index, CursorPosition(offset, epoch)
    raise Problem("MALFORMED_CURSOR", f"malformed part of a cursor: {part[:100]!r}")
