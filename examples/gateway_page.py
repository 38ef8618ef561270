"""Follow a page of the dashboard over the gateway's WebSocket: print the rows of its tables that change.

Needs `pip install websockets` and a gateway (`comet up`). With tokens, give the header `authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import websockets


def text(cell: Any) -> str:
    """A cell is a text, or an object with more than the text."""
    return str(cell["t"] if isinstance(cell, dict) else cell)


class Tables:
    """The rows of a page's tables, kept up to date."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.rows: dict[str, dict[str, list[Any]]] = {name: one["rows"] for name, one in document["tables"].items()}

    def apply(self, delta: dict[str, Any]) -> None:
        for name, change in delta.get("tables", {}).items():
            rows = self.rows.setdefault(name, {})
            for key, cells in change.get("rows", {}).items():
                if isinstance(cells, list):  # a new row, or one that changed as a whole
                    rows[key] = cells
                else:
                    for column, cell in cells.items():
                        rows[key][int(column)] = cell
                self.show(name, key)
            for key in change.get("gone", ()):
                sys.stdout.write(f"{name}: {key} is gone\n")
                del rows[key]
        for name in delta.get("gone_tables", ()):
            del self.rows[name]

    def show(self, name: str, key: str) -> None:
        shown = " | ".join(map(text, self.rows[name][key]))
        sys.stdout.write(f"{name}: {shown}\n")


async def main(url: str, page: str, count: int) -> None:
    subscribe = json.dumps({"type": "subscribe", "id": "p", "page": page})
    left = count
    # Each turn is a connection. The library pauses, longer each time, only while it cannot connect.
    async for socket in websockets.connect(url, subprotocols=[websockets.Subprotocol("comet.v1")], max_size=None):
        tables, seq = Tables({"tables": {}}), -1
        try:
            await socket.send(subscribe)
            async for received in socket:
                match frame := json.loads(received):
                    case {"type": "page"}:
                        tables, seq = Tables(frame["document"]), frame["seq"]
                        for name, rows in tables.rows.items():
                            for key in rows:
                                tables.show(name, key)
                    case {"type": "delta"}:
                        assert frame["seq"] == seq + 1, "a delta is missing"
                        tables.apply(frame["delta"])
                        seq += 1
                    case {"type": "error"}:
                        sys.stdout.write(f"problem: {frame['problem']['detail']}\n")
                    case {"type": "end"}:
                        return
                    case _:
                        continue
                left -= 1
                if not left:
                    return
        except websockets.ConnectionClosed:
            continue


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "ws://localhost:8080/v1/ws"
    followed = sys.argv[2] if len(sys.argv) > 2 else "/topics"
    asyncio.run(main(address, followed, int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize))
