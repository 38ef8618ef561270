r"""Generated records of `comet produce --template`: text with fields that change from record to record.

%d    number of the record, from 0        %T    time in milliseconds since 1970
%f    random number from 0 to 1           %x    16 random hex digits
%{A|B|C}    one of these, at random       %{1..100}    random whole number from 1 to 100
%%    a percent
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Final

from comet.errors import InvalidArgument

LISTED: Final = (
    "%d number of the record, %T time in ms, %f random number from 0 to 1, %x random hex digits, %{A|B} one of these, "
    "%{1..100} random whole number, %% percent"
)
CHUNK_RECORDS: Final = 1000
CHUNK_BYTES: Final = 1 << 20
_TOKEN: Final = re.compile(r"%(?:\{([^{}]*)\}|(.?))", re.DOTALL)
_RANGE: Final = re.compile(r"(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})", re.ASCII)
_Piece = Callable[[int], str]  # of the number of a record


class RecordTemplate:
    """A parsed template. `random` and `clock_ms` are those of all its records."""

    def __init__(self, text: str, random: Random, clock_ms: Callable[[], int]) -> None:
        """Raises InvalidArgument for an unknown field, with the list of those that there are."""
        self._random = random
        self._clock_ms = clock_ms
        self._pieces: list[_Piece] = []
        at = 0
        for token in _TOKEN.finditer(text):
            self._add_text(text[at : token.start()])
            self._pieces.append(self._piece(token))
            at = token.end()
        self._add_text(text[at:])

    def records(self, count: int) -> Iterator[list[bytes]]:
        """`count` records in chunks, in bounded memory."""
        rows = (self.record(number) for number in range(count))
        first = next(rows, None)
        if first is None:
            return
        yield [first]
        size = max(1, min(CHUNK_RECORDS, CHUNK_BYTES // max(len(first), 1)))
        while chunk := list(islice(rows, size)):
            yield chunk

    def record(self, number: int) -> bytes:
        return "".join([piece(number) for piece in self._pieces]).encode()

    def _add_text(self, text: str) -> None:
        if text:
            self._pieces.append(lambda _: text)

    def _piece(self, token: re.Match[str]) -> _Piece:
        random, options, field = self._random, token[1], token[2]
        if options is not None:
            if (bounds := _RANGE.fullmatch(options)) is not None:
                low, high = int(bounds[1]), int(bounds[2])
                if low <= high:
                    return lambda _: str(random.randint(low, high))
            elif options:
                choices = options.split("|")
                return lambda _: random.choice(choices)
        pieces: dict[str | None, _Piece] = {
            "d": str,
            "T": lambda _: str(self._clock_ms()),
            "f": lambda _: f"{random.random():.6f}",
            "x": lambda _: f"{random.getrandbits(64):016x}",
            "%": lambda _: "%",
        }
        if field not in pieces:
            raise InvalidArgument(f"invalid '{token[0]}' in --template: use {LISTED}")
        return pieces[field]
