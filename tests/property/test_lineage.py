"""The verdict on a metadata store against an oracle that remembers whole histories.

The oracle knows, of every folder, each write that the store had when the folder looked, and of the store each write
that it has now. The store goes on from what a folder knows exactly if the first list is the beginning of the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from comet_broker.core.cluster import Lineage, LineageEntry
from comet_broker.core.lineage import (
    Floor,
    LineageFinding,
    Seen,
    extended,
    intending,
    is_older,
    judge,
    raised,
    with_revisions,
)

CLUSTER = "c"
BROKERS = 3


@dataclass
class Store:
    """`writes[n]` made revision n + 2; each is unique."""

    writes: list[str] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)
    lineage_at: int = 0

    @property
    def revision(self) -> int:
        return len(self.writes) + 1

    def copy(self) -> Store:
        return Store(list(self.writes), self.lineage, self.lineage_at)

    def seen(self) -> Seen:
        return Seen(CLUSTER, with_revisions(self.lineage, self.lineage_at), self.revision, {})

    def add(self, entry: LineageEntry) -> None:
        self.writes.append(entry.mark)
        self.lineage = extended(with_revisions(self.lineage, self.lineage_at), entry)
        self.lineage_at = self.revision


@dataclass
class Folder:
    floor: Floor = field(default_factory=lambda: Floor(CLUSTER))
    known: list[str] = field(default_factory=list)  # all writes of the store when it looked last
    intended: list[str] = field(default_factory=list)
    registered: str = ""  # the last entry in the store's history of which it was the writer, as it knows

    def copy(self) -> Folder:
        return Folder(self.floor, list(self.known), list(self.intended), self.registered)


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 4)),
    st.tuples(st.just("register"), st.integers(0, BROKERS - 1)),
    st.tuples(st.just("tick"), st.integers(0, BROKERS - 1)),
    st.tuples(st.just("killed before it registers"), st.integers(0, BROKERS - 1)),
    st.tuples(st.just("look"), st.integers(0, BROKERS - 1)),
    st.tuples(st.just("snapshot"), st.just(0)),
    st.tuples(st.just("restore"), st.just(0)),
    st.tuples(st.just("recover"), st.integers(1, 7)),
    st.tuples(st.just("copy folder"), st.integers(0, BROKERS - 1)),
    st.tuples(st.just("put folder back"), st.integers(0, BROKERS - 1)),
)


class World:
    def __init__(self) -> None:
        self.store = Store()
        self.saved = Store()
        self.folders = [Folder() for _ in range(BROKERS)]
        self.copies = [Folder() for _ in range(BROKERS)]
        self.accepted: list[list[str]] = []  # histories that an operator has given up for the one that goes on
        self.number = 0
        self.recoveries = 0

    def mark(self) -> str:
        self.number += 1
        return f"w{self.number}"

    # ---- the oracle

    def goes_on(self, folder: Folder) -> bool:
        return self.store.writes[: len(folder.known)] == folder.known

    def provable(self, folder: Folder) -> bool:
        """Whether marks and revisions can tell that it does not: what the folder knows beyond the common beginning has
        an entry of the lineage, or the store is not as far, or had an entry of its own by then."""
        common = 0
        while common < min(len(folder.known), len(self.store.writes)) and (
            folder.known[common] == self.store.writes[common]
        ):
            common += 1
        marks = {entry.mark for entry in self.store.lineage.entries}
        lost_an_entry = any(write.startswith("e") for write in folder.known[common:])
        gained_one = any(write in marks for write in self.store.writes[common : len(folder.known)])
        return lost_an_entry or gained_one or self.store.revision < len(folder.known) + 1

    def covered(self, folder: Folder) -> bool:
        """An operator was shown what the folder knows, and gave it up: part of a history that was given up."""
        return any(history[: len(folder.known)] == folder.known for history in self.accepted)

    # ---- what happens

    def do(self, action: str, number: int) -> None:
        if action == "write":
            for _ in range(number):
                self.store.writes.append(self.mark())
        elif action == "snapshot":
            self.saved = self.store.copy()
        elif action == "restore":
            self.store = self.saved.copy()
        elif action == "recover":
            self.recover([folder for at, folder in enumerate(self.folders) if number >> at & 1])
        elif action == "copy folder":
            self.copies[number] = self.folders[number].copy()
        elif action == "put folder back":
            self.folders[number] = self.copies[number].copy()
        else:
            self.at_broker(action, number)

    def at_broker(self, action: str, broker: int) -> None:
        folder = self.folders[broker]
        verdict = judge(folder.floor, self.store.seen())
        if self.goes_on(folder):
            assert verdict.finding is LineageFinding.SAME, verdict.why
        elif self.covered(folder):
            assert verdict.finding in (LineageFinding.RECOVERED, LineageFinding.WENT_BACK, LineageFinding.SAME)
        elif self.provable(folder):
            assert verdict.finding in (LineageFinding.WENT_BACK, LineageFinding.RECOVERED)
        if not verdict.sound:
            return
        seen = self.store.seen()
        own = [entry.mark for entry in seen.entries if entry.broker == broker and not (entry.tick or entry.recovery)]
        assert is_older(folder.floor, seen, broker) == (bool(own) and own[-1] not in folder.intended)
        self.look(folder)
        if action == "killed before it registers":
            mark = "e" + self.mark()
            folder.intended.append(mark)
            folder.floor = intending(folder.floor, mark)
        elif action in ("register", "tick"):
            mark = "e" + self.mark()
            if action == "register":
                folder.intended.append(mark)
                folder.floor = intending(folder.floor, mark)
            self.store.add(LineageEntry(broker, mark, tick=action == "tick"))
            self.look(folder)

    def look(self, folder: Folder) -> None:
        folder.floor = raised(folder.floor, self.store.seen())
        folder.known = list(self.store.writes)

    def recover(self, asked: list[Folder]) -> None:
        self.recoveries += 1
        below = max(folder.floor.revision for folder in asked)
        self.accepted += [list(folder.known) for folder in asked]
        number = max([entry.recovery for entry in self.store.lineage.entries] + [f.floor.recoveries for f in asked]) + 1
        mark = "e" + self.mark()
        self.store.add(LineageEntry(1, mark, recovery=number, below=below))


@given(st.lists(ACTIONS, max_size=40))
def test_a_store_is_refused_when_it_can_be_proved_and_never_when_it_goes_on(actions: list[tuple[str, int]]) -> None:
    world = World()
    for action, number in actions:
        world.do(action, number)


@given(st.lists(ACTIONS.filter(lambda action: action[0] != "recover"), max_size=40))
def test_without_a_recovery_no_history_is_taken_for_another(actions: list[tuple[str, int]]) -> None:
    world = World()
    for action, number in actions:
        world.do(action, number)
        for folder in world.folders:
            found = judge(folder.floor, world.store.seen()).finding
            assert found is not LineageFinding.RECOVERED
            if world.provable(folder) and not world.goes_on(folder):
                assert found is LineageFinding.WENT_BACK


@given(st.lists(ACTIONS.filter(lambda action: action[0] not in ("restore", "recover")), max_size=30), st.integers(1, 7))
def test_after_a_recovery_those_that_were_asked_go_on_and_those_that_know_less(
    actions: list[tuple[str, int]], asked: int
) -> None:
    world = World()
    for action, number in actions:
        world.do(action, number)
    world.do("restore", 0)
    world.do("recover", asked)
    below = max(folder.floor.revision for at, folder in enumerate(world.folders) if asked >> at & 1)
    for folder in world.folders:
        if folder.floor.revision <= below:
            assert judge(folder.floor, world.store.seen()).sound
