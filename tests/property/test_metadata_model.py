"""Metadata stores against a dumb one: a dict that is copied at every revision."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_broker.metadata.embedded import EmbeddedStore
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Compare, Delete, MetadataStore, Put, WatchEvent
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.loop import SimLoop, run
from comet_testing.simulation.worker import SimWorker, WorkerPace

KEYS = st.sampled_from(["a", "a/", "a/b", "a/b/c", "b", "ä", "a%", "\U00010000"])
OPERATIONS = st.lists(
    st.one_of(st.builds(Put, KEYS, st.binary(max_size=4)), st.builds(Delete, KEYS)),
    max_size=4,
    unique_by=lambda operation: operation.key,
)
# How far back a compare looks: 0 the present revision of the key, 1 one before it, None that it is absent.
COMPARES = st.lists(st.tuples(KEYS, st.sampled_from([0, 0, 0, 1, None])), max_size=2)
STEPS = st.lists(st.tuples(COMPARES, OPERATIONS), max_size=25)


class Model:
    """What a store should hold: per key value, creation and change; and that of every revision."""

    def __init__(self) -> None:
        self.revision = 1
        self.items: dict[str, tuple[bytes, int, int]] = {}
        self.past: dict[int, dict[str, tuple[bytes, int, int]]] = {1: {}}

    def mod_revision(self, key: str) -> int:
        return self.items[key][2] if key in self.items else 0

    def transact(self, compares: list[Compare], operations: list[Put | Delete]) -> bool:
        if any(self.mod_revision(compare.key) != compare.mod_revision for compare in compares):
            return False
        after = dict(self.items)
        for operation in operations:
            old = after.pop(operation.key, None)
            if isinstance(operation, Put):
                created = old[1] if old else self.revision + 1
                after[operation.key] = (operation.value, created, self.revision + 1)
        if after != self.items:
            self.revision += 1
            self.items = self.past[self.revision] = after
        return True


@pytest.mark.parametrize("kind", ["memory", "embedded"])
@settings(max_examples=60)
@given(steps=STEPS)
def test_a_store_does_what_a_dict_does(kind: str, steps: list[tuple[Any, list[Put | Delete]]]) -> None:
    with TemporaryDirectory() as folder:
        run(lambda loop: _compare(loop, kind, Path(folder) / "metadata.db", steps))


async def _compare(loop: SimLoop, kind: str, path: Path, steps: list[tuple[Any, list[Put | Delete]]]) -> None:
    clock, worker = SimClock(loop), SimWorker(Random(1), WorkerPace())
    store: MetadataStore
    store = MemoryStore(clock) if kind == "memory" else await EmbeddedStore.open(path, clock, worker=worker)
    model = Model()
    for wanted, operations in steps:
        compares = [Compare(key, 0 if back is None else max(model.mod_revision(key) - back, 0)) for key, back in wanted]
        result = await store.transact(compares, operations)
        assert result.applied == model.transact(compares, operations)
        assert result.revision == model.revision
        await _same(store, model)
    await _replay(store, model)
    if kind == "embedded":
        await store.close()
        store = await EmbeddedStore.open(path, clock, worker=worker)
        await _same(store, model)
    await store.close()


async def _same(store: MetadataStore, model: Model) -> None:
    for prefix in ["", "a", "a/", "a/b", "b", "%"]:
        listing = await store.range(prefix)
        assert listing.revision == model.revision
        held = [(item.key, (item.value, item.create_revision, item.mod_revision)) for item in listing.items]
        assert held == sorted((key, item) for key, item in model.items.items() if key.startswith(prefix))


async def _replay(store: MetadataStore, model: Model) -> None:
    """The changes of a watch, one after the other, give every state there was."""
    watch = store.watch("", 1)
    state: dict[str, tuple[bytes, int, int]] = {}
    for revision in range(2, model.revision + 1):
        for event in await anext(watch):
            _apply(state, event, revision)
        assert state == model.past[revision]


def _apply(state: dict[str, tuple[bytes, int, int]], event: WatchEvent, revision: int) -> None:
    assert event.revision == revision
    if event.item is None:
        del state[event.key]
    else:
        state[event.key] = (event.item.value, event.item.create_revision, event.item.mod_revision)
