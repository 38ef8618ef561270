"""The finding of a check of `comet doctor`: what it found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    status: str  # ok, warn (works, but needs attention), fail (will not work)
    detail: str
    advice: str = ""

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "status": self.status, "detail": self.detail, "advice": self.advice}
