"""How `make test` divides the tests among its workers, of which one may die."""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# What starts processes shares the machine and keeps time limits: one after the other, beside all that is computed.
# Pages wait for a browser most of the time, so they need not wait for the others.
GROUPS = {
    "bench": "bench",
    "robustness": "processes",
    "browser": "pages",
    "spark": "spark",
    "deploy": "deploy",
}
# Those of integration that start processes. The servers of the others run in the test itself: they divide by files,
# which may share fixtures.
STARTING = frozenset(
    [
        "access_keys",
        "audit",
        "cancelled_calls",
        "cli_flows",
        "cli_groups",
        "client_credentials",
        "cluster_cli",
        "dead_worker",
        "demo",
        "demo_ends",
        "demo_feed",
        "demo_strangers",
        "descriptors",
        "doctor_tls",
        "documents",
        "encryption",
        "frames",
        "gateway_access",
        "gateway_hub",
        "gateway_resources",
        "gateway_server",
        "gateway_tour",
        "gateway_up",
        "listeners",
        "local_etcd",
        "monitor",
        "new_topic_setting",
        "poison",
        "processes",
        "proxies",
        "sdk",
        "sdk_scripts",
        "secure_cluster",
        "secure_guide",
        "spark_updates",
        "start_stop",
        "sync_reads",
        "sync_sends",
        "unix_wire",
        "user_rules",
        "walkthroughs",
        "wire",
        "wire_metadata",
        "without_metadata",
    ]
)


def group_of(nodeid: str) -> str:
    """What one worker runs, by the id of a test in it.

    >>> group_of("tests/unit/test_words.py::test_one"), group_of("tests/robustness/test_kill.py::test_one")
    ('tests/unit/test_words.py::test_one', 'processes')
    >>> group_of("tests/integration/test_demo.py::test_one"), group_of("tests/integration/test_groups.py::test_one")
    ('processes', 'tests/integration/test_groups.py')
    """
    file = nodeid.partition("::")[0]
    folder = file.split("/")[1]
    if folder != "integration":
        return GROUPS.get(folder, nodeid)
    return "processes" if Path(file).stem.removeprefix("test_") in STARTING else file


class Groups(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """A group stays in one worker. (Marks would say the same, but xdist tells its workers of them through the ids of
    tests, which a later pytest does not let it change.)"""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

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
