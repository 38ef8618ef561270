"""One seed is one transcript, byte for byte."""

from __future__ import annotations

import pytest

from tests.kit.story import transcript
from tests.sim.hash_seeds import prints

RUNS = 100


def test_a_seed_is_one_transcript() -> None:
    first = transcript(7)
    assert transcript(7) == first
    assert transcript(8) != first


def test_a_seed_is_one_transcript_in_every_process() -> None:
    """Neither the order of sets nor the addresses of objects decide anything."""
    assert len(prints("from tests.kit.story import transcript; print(transcript(7))")) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_seed_is_one_transcript_a_hundred_times() -> None:
    assert len({transcript(7) for _ in range(RUNS)}) == 1
