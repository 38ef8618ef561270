"""A process that writes to a metadata store as fast as it can and reports what is acknowledged, until it is killed.

usage: python -m tests.robustness.metadata_writer FILE NAME
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from comet_broker.metadata.embedded import EmbeddedStore
from comet_broker.metadata.store import Delete, Put
from comet_broker.system import SystemClock

WRITERS = 4


async def write(store: EmbeddedStore, name: str, writer: int) -> None:
    """Every transaction keeps two keys equal and removes the one before it."""
    number = 0
    while True:
        number += 1
        value = f"{name}-{number}".encode() * (1 + number % 300)
        operations: list[Put | Delete] = [Put(f"{side}/{writer}", value) for side in ("left", "right")]
        operations += [Delete(f"old/{name}/{writer}/{number - 1}"), Put(f"old/{name}/{writer}/{number}", b"")]
        result = await store.transact([], operations)
        print(result.revision, writer, value.decode(), flush=True)


async def main(path: Path, name: str) -> None:
    print("opening", flush=True)
    store = await EmbeddedStore.open(path, SystemClock())
    print("open", flush=True)
    await asyncio.gather(*(write(store, name, writer) for writer in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
