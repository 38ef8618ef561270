"""A measuring process from inside: its work, and its link to the command that started it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias


class Link:
    """The connection to the command that started us; the process ends with it. See `processes` for the messages."""

    def __init__(self) -> None:
        self._held = b""
        self._orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(0, self._on_readable)

    def _on_readable(self) -> None:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            os._exit(1)  # the command has ended
        *lines, self._held = (self._held + chunk).split(b"\n")
        for line in lines:
            self._orders.put_nowait(json.loads(line)["go"])

    def report(self, kind: str, content: Any) -> None:
        sys.stdout.write(json.dumps({kind: content}) + "\n")
        sys.stdout.flush()

    async def go(self, **ready: Any) -> dict[str, Any]:
        """Reports ready and waits for the order to start. Excludes start-up objects from garbage collection."""
        gc.collect()
        gc.freeze()
        return await self.next_order(**ready)

    async def next_order(self, **state: Any) -> dict[str, Any]:
        """Answers the last order and waits for the next; for a worker that gets several orders."""
        self.report("ready", state)
        return await self._orders.get()


Work: TypeAlias = Callable[[Link, Any], Awaitable[dict[str, Any]]]
