"""A child process that ends when the test says so."""

from __future__ import annotations

from pathlib import Path

from comet.processes.child import Child


class FakeChild(Child):
    """Runs until the test sets `code`; `words` are the last line of its log."""

    def __init__(self, name: str, words: str = "its last words") -> None:
        super().__init__(name, [], log=Path(f"{name}.log"))
        self.starts = 0
        self.code: int | None = None
        self.words = words

    @property
    def ended(self) -> int | None:
        return self.code

    def last_lines(self, beginning: str = "") -> list[str]:
        return [self.words]

    def start(self) -> None:
        self.starts += 1
        self.code = None
