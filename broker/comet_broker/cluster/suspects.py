"""Brokers whose streams broke off: one whose process is certainly gone loses its registration at once.

Owned by the broker; on its loop.
"""

from __future__ import annotations

import logging

from comet_broker.cluster.membership import Membership
from comet_broker.cluster.view import ClusterView
from comet_broker.metadata.store import StoreUnavailable
from comet_broker.ports import Network

log = logging.getLogger(__name__)


class Suspects:
    def __init__(self, *, view: ClusterView, membership: Membership, network: Network) -> None:
        self._view = view
        self._membership = membership
        self._network = network
        self._checking: set[int] = set()

    async def check(self, broker: int) -> None:
        """Revokes a broker's registration if the network is certain that no process listens at its address."""
        address = self._view.address_of(broker)
        if address is None or broker == self._membership.broker_id or broker in self._checking:
            return
        self._checking.add(broker)
        try:
            broker_epoch = self._view.state.broker_epoch(broker)
            if await self._network.refused(address) and self._view.state.broker_epoch(broker) == broker_epoch:
                log.info("broker %d is gone: no process listens at %s", broker, address, extra={"peer_broker": broker})
                await self._membership.revoke(broker, broker_epoch)
        except StoreUnavailable as error:
            log.info("cannot report that broker %d is gone: %s", broker, error, extra={"peer_broker": broker})
        finally:
            self._checking.discard(broker)
