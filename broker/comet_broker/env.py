"""The environment of a broker's parts: every part may use it, and none changes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from comet_broker import limits
from comet_broker.config import BrokerConfig
from comet_broker.core.filter_time import FilterTime
from comet_broker.failures import Failures
from comet_broker.memory.in_flight import InFlight
from comet_broker.ports import Clock, Worker
from comet_broker.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Env:
    """The settings and ports of one broker, its tasks and its table of failures. Made by the broker, or by a test."""

    config: BrokerConfig
    clock: Clock
    worker: Worker
    random: Random
    tasks: Tasks
    failures: Failures
    in_flight: InFlight
    filter_time: FilterTime
    filter_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # of the readers with filters

    @classmethod
    def of(
        cls,
        config: BrokerConfig,
        *,
        clock: Clock,
        worker: Worker,
        random: Random,
        memory_bytes: int = limits.MEMORY_BYTES,
    ) -> Env:
        """With tasks, failures and a quota of its own."""
        tasks = Tasks()
        in_flight = InFlight(int(limits.IN_FLIGHT_SHARE * memory_bytes))
        return cls(
            config,
            clock,
            worker,
            random,
            tasks,
            Failures(clock, tasks),
            in_flight,
            FilterTime(clock, config.filter_percent),
        )

    @property
    def me(self) -> int:
        """This broker's id."""
        return self.config.broker_id
