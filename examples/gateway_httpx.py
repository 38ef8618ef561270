"""Write, read and follow over HTTP with httpx alone, without an installation of Comet.

Needs `pip install httpx`, a gateway (`comet up`) and a topic (`comet topic create quotes`).
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx

AGAIN = (429, 503, 504)  # worth a retry


def publish(http: httpx.Client, topic: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Retries after a retriable error; the key makes sure that each record is written once."""
    key = {"idempotency-key": str(uuid.uuid4())}
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = http.post(f"/v1/topics/{topic}/records?acks=all", json={"records": records}, headers=key)
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
            continue
        if answer.status_code in AGAIN and time.monotonic() < deadline:
            time.sleep(int(answer.headers.get("retry-after", 1)))
            continue
        results: list[dict[str, Any]] = answer.raise_for_status().json()["results"]
        return results


def follow(
    http: httpx.Client, topic: str, cursor: str | None = None, start: str = "latest"
) -> Iterator[dict[str, Any]]:
    """Records as they come, without end: after a lost connection it continues behind the last one."""
    while True:
        where = {"start": start} if cursor is None else {"cursor": cursor}
        try:
            with http.stream("GET", f"/v1/topics/{topic}/stream", params=where, timeout=30) as answer:
                answer.raise_for_status()
                name = data = behind = ""
                for line in answer.iter_lines():
                    field, _, value = line.partition(": ")
                    if field == "id":
                        behind = value
                    elif field == "event":
                        name = value
                    elif field == "data":
                        data = value
                    elif not line and data:  # the event is complete, and its cursor holds
                        found = json.loads(data)
                        cursor = behind or cursor
                        if not name:
                            yield found
                        elif name in ("lost", "error") or found.get("missing"):
                            sys.stderr.write(f"{name}: {data}\n")
                        name = data = behind = ""
        except httpx.TransportError:
            pass
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in AGAIN:
                raise
        time.sleep(1)


def main(url: str) -> None:
    with httpx.Client(base_url=url) as http:
        quotes = [{"key": "GBPUSD", "value": {"bid": 1.27 + n / 100}} for n in range(3)]
        for result in publish(http, "quotes", quotes):
            sys.stdout.write(f"written: partition {result['partition']}, offset {result['offset']}\n")
        newest = http.get("/v1/topics/quotes/records", params={"order": "newest", "limit": 1}).json()
        sys.stdout.write(f"newest: {newest['records'][0]['value']}\n")
        for count, record in enumerate(follow(http, "quotes", start="earliest"), 1):
            sys.stdout.write(f"followed: {record.get('key')} {record.get('value', record.get('text'))}\n")
            if count == 3:
                break


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080")
