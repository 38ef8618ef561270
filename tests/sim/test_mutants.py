"""Every planted bug is found, by an invariant that it breaks, within its number of seeds."""

from __future__ import annotations

import pytest

from tests.sim.checker import INVARIANTS
from tests.sim.hunting import hunt, order
from tests.sim.mutants import MUTANTS
from tests.sim.planting import SEEDS_MAX, planted
from tests.sim.runs import run_one, tell

MUTANTS_MIN = 15

pytestmark = pytest.mark.timeout(240)  # a bug can make a run long


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_bug_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    found = hunt(mutant, order(mutant))
    assert found is not None, f"{name} ({mutant.why}) went unnoticed for {SEEDS_MAX} seeds"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_without_the_bug_the_same_run_is_clean(name: str) -> None:
    """What is found is the bug, not the profile."""
    result = run_one("broker", 0, MUTANTS[name].profile)
    assert result.ok, "\n".join(tell(result, verbose=False))


def test_there_are_enough_and_they_break_known_invariants() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    assert {name for mutant in MUTANTS.values() for name in mutant.breaks} <= set(INVARIANTS)


def test_a_planted_bug_is_gone_afterwards() -> None:
    for mutant in MUTANTS.values():
        before = [vars(where)[name] for where, name, _ in mutant.patches()]
        with planted(mutant):
            assert [vars(where)[name] for where, name, _ in mutant.patches()] != before
        assert [vars(where)[name] for where, name, _ in mutant.patches()] == before
