"""The embedded metadata store under kill -9: what it acknowledged is there, whole, whatever moment it struck at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

from comet_broker.metadata.embedded import EmbeddedStore
from comet_broker.metadata.store import KeyValue
from comet_broker.system import SystemClock
from tests.robustness.metadata_writer import WRITERS

CYCLES = 25


async def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    random = Random(20)
    revision = 1
    for cycle in range(CYCLES):
        lines = _run_and_kill(
            path, f"c{cycle}", random.choice([1, 2, random.randrange(3, 50), random.randrange(50, 1500)])
        )
        acknowledged = [line.split() for line in lines if line[0].isdigit()]

        store = await EmbeddedStore.open(path, SystemClock())
        listing = await store.range("")
        await store.close()
        items = {item.key: item for item in listing.items}
        _check_pairs(items)
        for at, writer, value in acknowledged:
            item = items[f"left/{writer}"]
            assert item.mod_revision > int(at) or item.value.decode() == value, f"cycle {cycle}: revision {at} is lost"
        reported = max((int(at) for at, _, _ in acknowledged), default=revision)
        assert listing.revision >= reported >= revision
        revision = listing.revision
    assert revision > 1000, "the writers hardly came to write"


def _run_and_kill(path: Path, name: str, lines: int) -> list[str]:
    """Kills the writer after so many lines; returns them with all that it had reported by then."""
    command = [sys.executable, "-m", "tests.robustness.metadata_writer", str(path), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            reported = [process.stdout.readline() for _ in range(lines)]
        finally:
            process.kill()
        # Not by `communicate`: it reads the pipe itself and leaves out what `readline` has in its buffer.
        reported += process.stdout.readlines()
        errors = process.stderr.read()
    assert process.returncode == -9, errors
    # The last line may have been cut off in the middle.
    return [line for line in reported if line.endswith("\n")]


def _check_pairs(items: dict[str, KeyValue]) -> None:
    """No transaction is there by half."""
    for writer in range(WRITERS):
        left, right = items.get(f"left/{writer}"), items.get(f"right/{writer}")
        assert (left and (left.value, left.mod_revision)) == (right and (right.value, right.mod_revision))
    names = [key.rsplit("/", 1)[0] for key in items if key.startswith("old/")]
    assert len(names) == len(set(names)), "a key was put and the one it replaces was not deleted"
