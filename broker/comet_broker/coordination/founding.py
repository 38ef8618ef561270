"""Share groups that never had a member: their records are acquired without sessions.

The leader that acquires has the group's coordinator create the group first, wherever it is: `found`. From then on the
group is listed and described, is a share group, and stays until it is deleted.
"""

from __future__ import annotations

import asyncio
from typing import Final

from comet.errors import NotCoordinator, Timeout, Unavailable
from comet.v1 import coordination_pb2 as pb
from comet_broker.cluster.peers import Peers
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.core import slots
from comet_broker.env import Env

METHOD: Final = "comet.v1.Coordination/FoundGroup"
FOUND_S_MAX: Final = 5.0  # after which the client is asked to retry
CALL_S_MAX: Final = 2.0
RETRY_S: Final = 0.01
RETRY_S_MAX: Final = 0.2


class Founding:
    """Owned by the broker."""

    def __init__(self, env: Env, *, coordinator: Coordinator, peers: Peers) -> None:
        self._me = env.me
        self._clock = env.clock
        self._coordinator = coordinator
        self._peers = peers

    async def found(self, group: str, topic_id: bytes) -> None:
        """Returns when the group exists. Raises InvalidArgument for a consumer group, or Unavailable."""
        number = slots.slot_of(group)
        request = pb.FoundGroupRequest(group=group, topic_id=topic_id)
        pause_s = RETRY_S
        give_up = self._clock.monotonic() + FOUND_S_MAX
        while True:
            try:
                owner, record = self._coordinator.whereabouts(number)
                if owner == self._me:
                    await self.found_here(request)
                else:
                    await self._peers.call(record.brokers_address, METHOD, request, pb.FoundGroupResponse, CALL_S_MAX)
            except (NotCoordinator, Unavailable, Timeout) as error:
                if self._clock.monotonic() + pause_s >= give_up:
                    raise Unavailable(
                        f"cannot reach the coordinator of group {group!r}: {error}", retry_after_ms=100
                    ) from error
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def found_here(self, request: pb.FoundGroupRequest) -> None:
        await self._coordinator.of(request.group).groups.found(request.group, request.topic_id.hex())
