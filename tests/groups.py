"""How `make test` divides the tests among its workers, of which one may die."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# What starts processes shares the machine and keeps time limits: one after the other, beside all that is computed.
# Pages wait for a browser most of the time, so they need not wait for the others.
GROUPS = {
    "bench": "processes",
    "integration": "processes",
    "robustness": "processes",
    "browser": "pages",
    "spark": "spark",
}


class Groups(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """A group stays in one worker. (Marks would say the same, but xdist tells its workers of them through the ids of
    tests, which a later pytest does not let it change.)"""

    def _split_scope(self, nodeid: str) -> str:
        return GROUPS.get(nodeid.split("/")[1], nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Gives what a dead worker had left to others, without the test that it died of. xdist's own gives all that the
        worker ever had: that test kills the next worker, and a unit without a test left is waited for without end."""
        crashed = None
        for scope, unit in self.assigned_work.pop(node).items():
            left = [nodeid for nodeid, completed in unit.items() if not completed]
            if left and crashed is None:  # a worker runs its units in the order in which it got them
                crashed = left.pop(0)
            if left:
                self.workqueue[scope] = dict.fromkeys(left, False)
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:  # else it is new, and looks for its tests: xdist takes it for ready
            super()._reschedule(node)
