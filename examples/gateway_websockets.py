"""Follow a topic and write to it over one WebSocket, and resume at the cursor when the connection ends.

Needs `pip install websockets`, a gateway (`comet up`) and a topic (`comet topic create quotes`).
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from typing import Any

import websockets


class Reader:
    """Keeps the cursor, so that each record is shown once, also over reconnections."""

    def __init__(self) -> None:
        self.cursor: str | None = None
        self.shown = 0
        self.written = False
        self._key = str(uuid.uuid4())

    def produce(self) -> str:
        """May be sent again until there is a receipt: the record is written once."""
        quote = {"key": "USDJPY", "value": {"bid": 151.2}}
        return json.dumps(
            {"type": "produce", "id": "p", "topic": "quotes", "record": quote, "idempotency_key": self._key}
        )

    def subscribe(self) -> str:
        where = {"start": "earliest"} if self.cursor is None else {"cursor": self.cursor}
        return json.dumps({"type": "subscribe", "id": "s", "topic": "quotes", **where})

    def take(self, frame: dict[str, Any]) -> None:
        match frame["type"]:
            case "subscribed":
                for gone in frame.get("missing", ()):
                    sys.stdout.write(f"missing: {gone}\n")
            case "records":
                for record in frame["records"]:
                    self.shown += 1
                    sys.stdout.write(
                        f"{record['partition']}/{record['offset']}: {record.get('value', record.get('text'))}\n"
                    )
            case "error":
                sys.stdout.write(f"error: {frame['problem']['detail']}\n")
            case "receipt":
                self.written = True
                sys.stdout.write(f"written: {frame['results']}\n")
        self.cursor = frame.get("cursor", self.cursor)


async def main(url: str, count: int) -> None:
    reader = Reader()
    # Each turn is a connection; after one that ended the library waits a little longer each time.
    async for socket in websockets.connect(url, subprotocols=[websockets.Subprotocol("comet.v1")]):
        try:
            await socket.send(reader.subscribe())
            if not reader.written:
                await socket.send(reader.produce())
            async for text in socket:
                reader.take(json.loads(text))
                if reader.written and reader.shown >= count:
                    return
        except websockets.ConnectionClosed:
            continue


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "ws://localhost:8080/v1/ws"
    asyncio.run(main(address, int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize))
