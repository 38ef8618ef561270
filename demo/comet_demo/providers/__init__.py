"""Where quotes come from. A provider is anything with a name and a `stream` of lists of quotes.

The synthetic one needs no network; one for a real market implements the same protocol and nothing else changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from comet_demo.model import Quote


class Provider(Protocol):
    @property
    def name(self) -> str: ...

    def stream(self) -> AsyncIterator[Sequence[Quote]]:
        """Quotes as they come, those of one moment together. Ends when the source does."""
