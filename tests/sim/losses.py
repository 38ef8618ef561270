"""What a cluster may lose of a consistent partition: nothing, but as a last resort (docs/guarantees.md).

A loss happens at one moment: when somebody is elected who has less than was committed. It is allowed if then, at any
moment since the partition was last written down, those who are sure to have everything were

    not there at all, or
    not registered for as long as a lease, although they were waited for.

A broker is *sure* if it was in sync when the watermark could last move, or came to be since, and after that neither
its machine went down nor did its disk lose or damage the records of that partition. Two disks that are damaged at once
are no excuse while a third has the records, nor where they are damaged in different partitions. That is worked out here
from what was done to machines and disks, and from who was in sync: not from what brokers say of themselves, nor from
who counts as eligible.

Where a loss is allowed, the one that has the most leads all the same, of those that have been there for a lease.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from comet_broker.core.cluster import ClusterState, PartitionState, TopicSpec
from comet_broker.core.controller import LOSSY
from tests.sim.copies import Agreed, Copy

Where = tuple[str, int]  # topic id, partition


@dataclass(slots=True)
class Standing:
    """Of one partition."""

    members: dict[int, int] = field(default_factory=dict)  # broker -> broker epoch: of those who have had everything
    dry_since: float | None = None  # nobody who is sure has been registered since
    allowed: bool = False  # to elect one who may have lost something, since the partition was last written down


class Losses:
    """Owned by the monitor, whose picture it looks at: before that changes and after."""

    def __init__(
        self,
        state: ClusterState,
        copies: Mapping[tuple[int, Where], Copy],
        agreed: Mapping[Where, Agreed],
        lease_s: float,
        now: Callable[[], float],
    ) -> None:
        self.standing: dict[Where, Standing] = defaultdict(Standing)
        self._lied: dict[tuple[int, Where], int] = {}  # the revision at which a log was last exchanged or cut short
        self._down: dict[int, int] = {}  # broker -> the revision at which its machine last went down
        self._since: dict[int, float] = {}  # broker -> when it was registered
        self._state: Final = state
        self._copies: Final = copies
        self._agreed: Final = agreed
        self._lease_s: Final = lease_s
        self._now: Final = now

    # ---- who is sure

    def sure(self, broker: int, where: Where) -> bool:
        broker_epoch = self.standing[where].members.get(broker)
        copy = self._copies.get((broker, where))
        return (
            broker_epoch is not None
            and broker_epoch > self._down.get(broker, -1)
            and broker_epoch > self._lied.get((broker, where), -1)
            and (broker, *where) not in self._state.defective
            and (copy is None or not (copy.poisoned or copy.mending or copy.damaged))
        )

    def any_sure(self, where: Where) -> bool:
        return any(self.sure(broker, where) for broker in self.standing[where].members)

    def is_down(self, broker: int) -> None:
        """Its machine lost power: nobody knows what it has kept, and that by chance it was all helps nobody."""
        self._down[broker] = self._state.revision

    def lies(self, broker: int, where: Where) -> None:
        """What lies on its disk is not what it wrote there."""
        self._lied[broker, where] = self._state.revision

    # ---- what may be lost

    def look(self, only: Where | None = None) -> None:
        """To be called before and after anything changes that counts here."""
        for where in [only] if only is not None else list(self.standing):
            standing = self.standing[where]
            sure = [broker for broker in standing.members if self.sure(broker, where)]
            if any(broker in self._state.brokers for broker in sure):
                standing.dry_since = None
            else:
                if standing.dry_since is None:
                    standing.dry_since = self._now()
                if not sure or self._now() - standing.dry_since >= self._lease_s:
                    standing.allowed = True
            self._ruin(where, standing)

    def _ruin(self, where: Where, standing: Standing) -> None:
        """Damage is mended from another replica; where no other counts, it is a loss."""
        if len(standing.members) != 1:
            return
        (broker,) = standing.members
        copy = self._copies.get((broker, where))
        if copy is not None:
            self._agreed[where].ruined.update(
                (base, copy.batches[base].end) for base in copy.damaged if base in copy.batches
            )

    def longest(self, where: Where, has: Callable[[int], int]) -> tuple[int, int]:
        """Of the members that are registered for as long as a lease and have said how far their logs go, the one that
        has the most; (0, 0): none is. A slow metadata store may hold up what a broker says for longer than it is
        waited for: a replica that has more does not follow then."""
        found = [
            (has(broker), broker)
            for broker in self.standing[where].members
            if self._now() - self._since.get(broker, self._now()) >= self._lease_s
            and broker in self._state.brokers
            and (broker, *where) in self._state.ends
            and (broker, *where) not in self._state.defective
        ]
        return max(found, default=(0, 0))

    def registered(self, broker: int) -> None:
        """It is registered since now, or no longer."""
        self._since.pop(broker, None)
        if broker in self._state.brokers:
            self._since[broker] = self._now()

    def stated(self, where: Where, state: PartitionState, spec: TopicSpec) -> None:
        """Who is in sync has been written down, and what was allowed before is decided on."""
        standing = self.standing[where]
        in_sync = {b: start or standing.members.get(b, LOSSY) for b, start in state.in_sync.items()}
        enough = len(state.in_sync) >= min(spec.config.min_insync, len(state.replicas))
        before = {} if enough else {b: start for b, start in standing.members.items() if b in state.holders}
        standing.members = {**before, **in_sync}
        standing.allowed = False
        self.look(where)
