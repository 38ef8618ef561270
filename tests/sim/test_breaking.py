"""Clusters in which code raises an unexpected error about one partition: no other notices, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.sim.breaking import NAME
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.runs import run_one, tell

ALONE = ClusterProfile(
    brokers=3, faults=(NAME,), fault_every_s=3.0, replicas=3, min_insync=2, available=False, admin=False,
    final_crash="none",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(12))
def test_an_error_about_one_partition_is_that_of_no_other(seed: int) -> None:
    result = run_one("cluster", seed, ALONE)
    assert result.ok, "\n".join(tell(result, verbose=False))
    assert result.history.faults[NAME]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(8))
def test_nor_is_it_where_brokers_die_and_links_break(seed: int) -> None:
    profile = ClusterProfile(faults=(NAME, "kill", "cut_links", "isolate", "store_slow"), fault_every_s=2.0)
    result = run_one("cluster", seed, profile)
    assert result.ok, "\n".join(tell(result, verbose=False))
