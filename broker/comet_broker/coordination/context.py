"""The broker's services for a slot, and the claim on which the slot is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from comet_broker.cluster.view import ClusterView
from comet_broker.coordination.journal import Journal, slot_prefix
from comet_broker.coordination.logs import Logs
from comet_broker.coordination.markers import Markers
from comet_broker.env import Env
from comet_broker.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class SlotContext:
    """The broker's services for a slot."""

    env: Env
    view: ClusterView
    store: MetadataStore
    logs: Logs
    markers: Callable[[], Markers]  # makes those of one slot
    lag_series: Callable[[], int]  # the number of histories of lag that this broker keeps


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """A slot that this broker has claimed, and its journal."""

    number: int
    epoch: int
    journal: Journal

    @property
    def prefix(self) -> str:
        return slot_prefix(self.number)
