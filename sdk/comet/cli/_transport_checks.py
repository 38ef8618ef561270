"""The check of `comet doctor --bootstrap` on transports: the best one that this client gets to each broker, and why no
better one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from comet.cli._finding import Finding
from comet.errors import CometError

if TYPE_CHECKING:
    from comet.client.client import Client

ANSWER_S_MAX: Final = 10.0


def check_transports(addresses: tuple[str, ...]) -> list[Finding]:
    """A finding about each broker of the cluster; none if no broker answers, which other checks report."""
    return asyncio.run(_check(addresses))


async def _check(addresses: tuple[str, ...]) -> list[Finding]:
    from comet.client.client import Client

    client = Client(addresses)
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            await client.fetch(())
            return [await _about(client, address) for address in client.wires.offers]
    except (CometError, TimeoutError):
        return []
    finally:
        await client.close()


async def _about(client: Client, address: str) -> Finding:
    name = f"transport {address}"
    try:
        await client.connection(address)
    except CometError as error:
        return Finding(name, "fail", f"no stream: {error}", "see the finding about the broker")
    used = client.wires.used[address]
    why = f"; {'; '.join(used.reasons)}" if used.reasons else ""
    if not used.failed:
        return Finding(name, "ok", used.transport + why)
    return Finding(name, "warn", used.transport + why, "streams work, and cost more; see docs/operating.md, Transports")
