"""The sink: a file that holds every line once.

    lines.txt             the lines
    lines.txt.positions   {"bytes": the valid length of the file, "next": {partition: the next offset}}

A batch is written to the file and synced; then the positions are replaced in one step; then the group's offset is
committed. After a kill at any point, lines beyond the positions are cut off at the start, and delivered again; lines
below them are passed over when they are delivered again.

    python sink.py [BROKER] [FILE]
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import BinaryIO

import topics

import comet


class LineFile:
    """The file with its committed offsets. One process at a time has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._positions = path.with_name(path.name + ".positions")
        self._file: BinaryIO = path.open("ab")
        fcntl.flock(self._file, fcntl.LOCK_EX)  # until this process ends
        self._next: dict[str, int] = {}
        good = 0
        if self._positions.exists():
            known = json.loads(self._positions.read_bytes())
            self._next, good = known["next"], known["bytes"]
        self._file.truncate(good)

    def append(self, partition: int, first: int, end: int, lines: list[str]) -> None:
        """The lines of the offsets from `first` on; those that are in the file already are passed over."""
        new = lines[max(self._next.get(str(partition), 0) - first, 0) :]
        if not new:
            return
        self._file.write("".join(f"{line}\n" for line in new).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._next[str(partition)] = end
        self._keep({"bytes": self._file.tell(), "next": self._next})

    def _keep(self, positions: dict[str, object]) -> None:
        """Replaces the positions in one step: a reader finds the old ones or the new ones."""
        draft = self._positions.with_name(self._positions.name + ".new")
        with draft.open("wb") as file:
            file.write(json.dumps(positions).encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._positions)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def sink(address: str, file: LineFile) -> comet.App:
    app = comet.App(address, name="sink")

    @app.on("lowered", group="sink", start="earliest", instance="sink")
    async def write(batch: comet.RecordBatch[str]) -> None:
        await asyncio.to_thread(file.append, batch.partition, batch.first_offset, batch.next_offset, batch.models())

    return app


if __name__ == "__main__":
    broker, where = (*sys.argv[1:], *("localhost:9092", "lines.txt")[len(sys.argv) - 1 :])
    comet.run(topics.make(broker, "lowered"))
    sink(broker, LineFile(Path(where))).run()
