"""Groups that are there without ever having had a member: their records are acquired without sessions.

The leader that acquires tells the group's coordinator, wherever that is, before it does: `found`. From then on the
group is listed and described, is shared and nothing else, and stays until it is deleted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from comet.errors import NotCoordinator, Timeout, Unavailable
from comet.v1 import coordination_pb2 as pb
from comet_broker.core import slots

if TYPE_CHECKING:
    from comet_broker.broker import Broker

METHOD: Final = "comet.v1.Coordination/FoundGroup"
FOUND_S_MAX: Final = 5.0  # after which whoever wants to acquire is asked to try again
CALL_S_MAX: Final = 2.0
RETRY_S: Final = 0.01
RETRY_S_MAX: Final = 0.2


async def found(broker: Broker, group: str, topic_id: bytes) -> None:
    """Returns when the group is there. Raises InvalidArgument where it is of the other kind, or Unavailable."""
    number = slots.slot_of(group)
    request = pb.FoundGroupRequest(group=group, topic_id=topic_id)
    pause_s = RETRY_S
    give_up = broker.clock.monotonic() + FOUND_S_MAX
    while True:
        try:
            owner, host, port = broker.coordinator.whereabouts(number)
            if owner == broker.config.broker_id:
                await found_here(broker, request)
            else:
                await broker.peers.call(f"{host}:{port}", METHOD, request, pb.FoundGroupResponse, CALL_S_MAX)
        except (NotCoordinator, Unavailable, Timeout) as error:
            if broker.clock.monotonic() + pause_s >= give_up:
                raise Unavailable(
                    f"the coordinator of group {group!r} cannot be asked now: {error}", retry_after_ms=100
                ) from error
        else:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_S_MAX)


async def found_here(broker: Broker, request: pb.FoundGroupRequest) -> None:
    await broker.coordinator.of(request.group).groups.found(request.group, request.topic_id.hex())
