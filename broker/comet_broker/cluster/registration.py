"""The registration of this broker, and whether the cluster has recorded that it may have lost records.

Until then, later starts report it again. Owned by the broker.
"""

from __future__ import annotations

from comet.wire.version import VERSION
from comet_broker.cluster.view import ClusterView
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import BrokerRecord
from comet_broker.core.controller import LOSSY
from comet_broker.storage.data_folder import DataFolder


class Registration:
    def __init__(self, config: BrokerConfig, folder: DataFolder) -> None:
        self.port = config.port  # the server sets the real ones when they were 0
        self.brokers_port = 0  # of the listener for other brokers; 0: they use that of the clients
        self.wire_port = self.brokers_wire_port = 0  # of the wire; 0: without
        self.wire_socket = ""  # path of its Unix socket; empty: without
        self._config = config
        self._folder = folder

    def record(self) -> BrokerRecord:
        """This broker's record, to be registered, without its lease."""
        config, folder = self._config, self._folder
        counted, folder.counted = folder.counted, True  # before the rest is read: see DataFolder
        # A later registration in this process: a loss before the first one is known, one since then is reported.
        clean = (folder.identity.clean or folder.loss_known) and not folder.lost_here
        folder.counted = clean or counted
        return BrokerRecord(
            host=config.advertised_host or config.host,
            port=config.advertised_port or self.port,
            version=VERSION,
            folder=folder.identity.folder,
            lease=0,  # filled in by the membership
            rack=config.rack,
            clean=clean,
            adopted=folder.identity.adopted,
            brokers_host=self._brokers_host() if self.brokers_port else "",
            brokers_port=self.brokers_port,
            wire_port=self._wire_port(),
            wire_socket=self._wire_socket(),
            brokers_wire_port=self.brokers_wire_port,
        )

    @property
    def brokers_address(self) -> str:
        """Where other brokers connect."""
        config = self._config
        if self.brokers_port:
            return f"{self._brokers_host()}:{self.brokers_port}"
        return f"{config.advertised_host or config.host}:{config.advertised_port or self.port}"

    def _wire_port(self) -> int:
        config = self._config
        return config.advertised_wire_port or (0 if config.advertised_port else self.wire_port)

    def _wire_socket(self) -> str:
        """Behind a proxy, callers from elsewhere look local."""
        config = self._config
        return "" if config.advertised_port or config.advertised_wire_port else self.wire_socket

    def _brokers_host(self) -> str:
        config = self._config
        return config.brokers_advertised_host or config.advertised_host or config.brokers_host or config.host

    async def note_loss_known(self, view: ClusterView, broker_epoch: int) -> None:
        """Notes in the folder that the controller has recorded the loss, if it has. A loss of records on which the
        cluster counts stays."""
        folder = self._folder
        await folder.write_lost()
        if not (folder.lost_here or folder.loss_known) and broker_epoch and self._is_recorded(view, broker_epoch):
            await folder.note_loss_known()

    def _is_recorded(self, view: ClusterView, broker_epoch: int) -> bool:
        me, record, mine = self._config.broker_id, self.record(), (LOSSY, broker_epoch)
        for found in view.state.partitions.values():
            if found.value.folder_replaced(me, record):
                continue  # the folder's id shows at every start that its data is missing
            if found.value.in_sync.get(me, LOSSY) not in mine or found.value.eligible.get(me, LOSSY) not in mine:
                return False
        return True
