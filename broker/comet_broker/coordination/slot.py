"""One slot that this broker coordinates: its groups and its transactions, from the claim until it is lost."""

from __future__ import annotations

from collections.abc import Sequence

from comet.errors import CometError
from comet_broker.coordination.commits import Commits
from comet_broker.coordination.context import SlotClaim, SlotContext
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.memberships import Memberships
from comet_broker.coordination.transactions import Transactions
from comet_broker.failures import Kind
from comet_broker.metadata.store import KeyValue


class Slot:
    """Use its parts only while it is `ready`."""

    def __init__(self, claim: SlotClaim, context: SlotContext) -> None:
        self.claim = claim
        self.ready = False
        self.closed: CometError | None = None
        self._failures = context.env.failures
        self.groups = Groups(claim, context)
        self.members = Memberships(self.groups, context.env)
        self.commits = Commits(self.groups, context.env)
        self.transactions = Transactions(claim, context, self.commits)
        self.groups.on_evicted.append(self.transactions.evicted)

    @property
    def number(self) -> int:
        return self.claim.number

    @property
    def epoch(self) -> int:
        return self.claim.epoch

    def load(self, items: Sequence[KeyValue]) -> None:
        """Loads what an earlier coordinator has written."""
        relative = {item.key.removeprefix(self.claim.prefix): item for item in items}
        self.groups.load(relative)
        self.transactions.load(relative)
        self.ready = True

    def close(self, error: CometError) -> None:
        if self.closed is not None:
            return
        self.closed = error
        self.ready = False
        for close in (self.claim.journal.close, self.groups.close, self.members.close, self.transactions.close):
            with self._failures.guard(Kind.SLOT, str(self.number), "giving up"):
                close(error)
