"""Planted bugs of groups, share groups and transactions: each is a mistake that somebody could make.

See `mutants` and `cluster_mutants` for those below. Each has a seed that is known to catch it, which a test runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from comet.consumer import contents
from comet.errors import CometError
from comet.groups.assigned_partitions import AssignedPartitions
from comet.groups.commits import Commits
from comet.groups.group_consumer import GroupConsumer
from comet.producer.transaction import Writer
from comet_broker.coordination import fence
from comet_broker.coordination.committed_offsets import CommittedOffsets
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.coordination.group import LiveGroup
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.journal import Journal, Operation, Written
from comet_broker.coordination.logs import Logs
from comet_broker.coordination.markers import Markers
from comet_broker.coordination.slot import Slot
from comet_broker.coordination.transactions import Transactions
from comet_broker.core.group_record import GroupRecord, Owner
from comet_broker.core.groups import Group
from comet_broker.core.isolation import Isolation
from comet_broker.core.share_window import ShareWindow
from comet_broker.core.shares import Shares
from comet_broker.metadata.store import KeyValue
from comet_broker.partitions.transaction_batches import TransactionBatches
from comet_broker.sharing.calls import AcquireCalls
from comet_broker.sharing.dead_letters import DeadLetters
from comet_broker.sharing.state import SharePartition
from comet_broker.sharing.stored_state import StoredState
from tests.sim.group_checks import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, SHARED
from tests.sim.group_scenario import GroupProfile
from tests.sim.planting import Mutant, Patch

GROUP_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(
    why: str, breaks: str, group: str, *faults: str, caught_by: int = 0, **more: Any
) -> Callable[[Patches], Patches]:
    given: dict[str, Any] = {
        "members": 3, "partitions": 3, "fault_every_s": 3.0, "member_fault_every_s": 3.0, "pause_s": 0.4, "named": 0,
        **more,
    }  # fmt: skip

    def register(patches: Patches) -> Patches:
        profile = GroupProfile(groups=(group,), faults=faults, assignments=("sticky",), **given)
        name = patches.__name__
        GROUP_MUTANTS[name] = Mutant("groups", why, tuple(breaks.split()), profile, patches, caught_by)
        return patches

    return register


# ---- the coordinator and its journal


@mutant(
    "a commit is confirmed before the metadata store has it",
    "C21 C20 C34",
    AT_MOST_ONCE,
    "kill",
    "store_slow",
    fault_every_s=1.0,
    caught_by=2,
)
def confirm_before_it_is_written() -> list[Patch]:
    real = Journal.write

    def write(self: Journal, operations: Sequence[Operation], done: Written, *, generation: int = 0) -> None:
        real(self, operations, lambda _: None, generation=generation)
        done(None)

    return [(Journal, "write", write)]


@mutant(
    "a coordinator that was replaced goes on writing",
    "C21 C17 C34 C20",
    AT_MOST_ONCE,
    "pause",
    "lose_store",
    caught_by=27,
)
def write_without_comparing() -> list[Patch]:
    async def apply(self: Journal, writes: list[Any]) -> None:
        operations = {one.key: one for write in writes for one in write.operations}
        await self._store.transact([], list(operations.values()))

    return [(Journal, "_apply", apply)]


@mutant(
    "a write that got no answer is taken for done", "C21 C20 C34", AT_MOST_ONCE, "store_unsure", "kill", caught_by=1
)
def take_no_answer_for_yes() -> list[Patch]:
    real = Journal._apply

    async def apply(self: Journal, writes: list[Any]) -> None:
        store, self._store = self._store, _Deaf(self._store)
        try:
            await real(self, writes)
        finally:
            self._store = store

    return [(Journal, "_apply", apply)]


class _Deaf:
    """A store of which every silence is a yes."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, compares: Any, operations: Any) -> Any:
        from comet_broker.metadata.store import StoreUnavailable, TransactionResult

        try:
            return await self._store.transact(compares, operations)
        except StoreUnavailable:
            return TransactionResult(True, compares[0].mod_revision)


@mutant("what was committed is not loaded by the next coordinator", "C21 C34 C29", AT_MOST_ONCE, "kill", "drain")
def forget_offsets() -> list[Patch]:
    real = Groups.load

    def load(self: Groups, items: Mapping[str, KeyValue]) -> None:
        real(self, {key: item for key, item in items.items() if not key.startswith("offsets/")})

    return [(Groups, "load", load)]


@mutant(
    "while a coordinator loads, it says that nothing was committed",
    "C21 C34",
    AT_MOST_ONCE,
    "kill",
    "store_slow",
    fault_every_s=1.0,
    caught_by=28,
)
def take_loading_for_nothing() -> list[Patch]:
    real = Coordinator.slot

    def slot(self: Coordinator, number: int) -> Slot:
        found = self._slots.get(number)
        return real(self, number) if found is None or found.closed is not None else found

    return [(Coordinator, "slot", slot)]


@mutant("a lower position overwrites a higher one", "C21 C20", AT_LEAST_ONCE, caught_by=1)
def let_positions_go_back() -> list[Patch]:
    return [(CommittedOffsets, "latest", lambda self, tp: None)]


@mutant("a position may lie beyond the end of the log", "C21 C29", AT_LEAST_ONCE)
def commit_beyond_the_end() -> list[Patch]:
    return [(Logs, "refusal", lambda self, tp, offset: None)]


@mutant("whoever owns a partition may commit, in whichever generation it says", "C29", AT_LEAST_ONCE)
def commit_in_any_generation() -> list[Patch]:
    real = Group.owns

    def owns(self: Group, member: str, tp: Any, generation: int) -> bool:
        return real(self, member, tp, 1 << 40)

    return [(Group, "owns", owns)]


# ---- members


@mutant("a partition is given to its next owner before the last one has released it", "C17", AT_LEAST_ONCE)
def give_without_release() -> list[Patch]:
    real = Group.plan

    def plan(self: Group, now: float, racks: Any) -> None:
        real(self, now, racks)
        moved = [tp for tp, member in self.target.items() if self.owners[tp].member != member]
        if moved:
            self.generation += 1
            self.dirty = True
        for tp in moved:
            self.owners[tp] = Owner(self.target[tp], self.generation)

    return [(Group, "plan", plan)]


@mutant("members are told early", "C17 C20 C29", AT_LEAST_ONCE, "kill", "store_slow", fault_every_s=1.0)
def tell_before_it_is_stored() -> list[Patch]:
    real = LiveGroup.kick

    def kick(self: LiveGroup) -> None:
        journal = self._journal
        self._journal = self.writer._journal = _Hasty(journal)  # type: ignore[assignment]
        try:
            real(self)
        finally:
            self._journal = self.writer._journal = journal

    return [(LiveGroup, "kick", kick)]


class _Hasty:
    """A journal that says done at once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, operations: Sequence[Operation], done: Written, *, generation: int = 0) -> None:
        self._journal.write(operations, lambda _: None, generation=generation)
        done(None)


@mutant("who is silent keeps its partitions for ever", "C29 C20", AT_LEAST_ONCE)
def let_the_dead_own() -> list[Patch]:
    return [(Group, "tick", lambda self, now: [])]


@mutant("a new coordinator takes all members for gone", "C17", AT_LEAST_ONCE, "kill", "drain")
def load_without_members() -> list[Patch]:
    real = Group.restore.__func__  # type: ignore[attr-defined]

    def restore(cls: type[Group], record: GroupRecord, now: float) -> Group:
        group: Group = real(cls, record, now)
        for member in list(group.members):
            group.leave(member)
        return group

    return [(Group, "restore", classmethod(restore))]


@mutant("a generation is given twice", "C17", AT_LEAST_ONCE)
def keep_the_generation() -> list[Patch]:
    real = Group.plan

    def plan(self: Group, now: float, racks: Any) -> None:
        before = self.generation
        real(self, now, racks)
        if before:
            for tp, owner in self.owners.items():
                if owner.since > before:
                    self.owners[tp] = Owner(owner.member, before)
            self.generation = before

    return [(Group, "plan", plan)]


# ---- the SDK


@mutant("what is in hand is committed too", "C20", AT_LEAST_ONCE)
def commit_what_is_in_hand() -> list[Patch]:
    def done(self: AssignedPartitions[Any], reader: Any) -> int:
        last = self._last
        return last.offset + 1 if self._reader is reader and last is not None else int(reader.position)

    return [(AssignedPartitions, "_done", done)]


@mutant("a partition is released while a record of it is in hand", "C17", AT_LEAST_ONCE, caught_by=3)
def release_what_is_in_hand() -> list[Patch]:
    return [(AssignedPartitions, "_in_hand", lambda self, holding: False)]


@mutant("what was read ahead of a partition is handed out after it was released", "C17 C20", AT_LEAST_ONCE)
def hand_out_what_is_lost() -> list[Patch]:
    return [(AssignedPartitions, "_let_go", lambda self, holding: holding.begin())]


@mutant("a partition is read from its beginning, whatever was committed", "C34 C20", AT_MOST_ONCE)
def begin_at_the_beginning() -> list[Patch]:
    real = AssignedPartitions._read

    def read(self: AssignedPartitions[Any], holding: Any, where: Any, epoch: int | None = None) -> None:
        from comet.types import Earliest

        real(self, holding, Earliest(), None)

    return [(AssignedPartitions, "_read", read)]


@mutant(
    "a failed commit is taken for done", "C34 C21", AT_MOST_ONCE, "kill", "lose_clients", "stall_links", caught_by=10
)
def ignore_commit_errors() -> list[Patch]:
    real = Commits.commit

    async def commit(self: Commits, marks: Any) -> None:
        try:
            await real(self, marks)
        except CometError:
            return

    return [(Commits, "commit", commit)]


# ---- transactions


@mutant("an abort is marked as a commit", "C12 C14 C16", EXACTLY_ONCE)
def mark_aborts_as_commits() -> list[Patch]:
    real = Markers.write

    async def write(self: Markers, producer_id: int, epoch: int, commit: bool, tps: Any) -> None:
        await real(self, producer_id, epoch, True, tps)

    return [(Markers, "write", write)]


@mutant("readers see what is not decided yet", "C14", EXACTLY_ONCE)
def read_what_is_open() -> list[Patch]:
    return [(Isolation, "last_stable_offset", lambda self, high_watermark: high_watermark)]


@mutant("readers are not told what was aborted", "C14 C16", EXACTLY_ONCE)
def tell_of_no_abort() -> list[Patch]:
    return [(Isolation, "aborted", lambda self, first, end: [])]


@mutant("a transaction's positions are committed before it is decided", "C16", EXACTLY_ONCE, "kill", "store_slow")
def commit_positions_first() -> list[Patch]:
    real = Transactions._store

    def store(self: Transactions, one: Any, record: Any, admitted: Any = None) -> None:
        if admitted is None:
            real(self, one, record)
            return
        self._commits.write(admitted, [], lambda _: None)
        real(self, one, one.record)  # and the decision is forgotten

    return [(Transactions, "_store", store)]


@mutant("a commit is not fenced by who owns the partition", "C16", EXACTLY_ONCE, member_fault_every_s=1.5)
def commit_for_others() -> list[Patch]:
    real = fence._refusal

    def refusal(group: LiveGroup, commit: Any, logs: Any, topic: str, tp: Any, mark: Any) -> CometError | None:
        error = real(group, commit, logs, topic, tp, mark)
        return None if error is not None and error.code == "STALE_GENERATION" else error

    known = Groups.known

    def anybody(self: Groups, name: str) -> LiveGroup:
        group = known(self, name)
        group.machine.heard_from = lambda member, now: None  # type: ignore[assignment,method-assign,return-value]
        return group

    return [(fence, "_refusal", refusal), (Groups, "known", anybody), (Transactions, "evicted", lambda *_: None)]


@mutant("who coordinates next does not finish what was decided", "C29 C12", EXACTLY_ONCE, "kill", "drain", caught_by=9)
def leave_the_decided_unfinished() -> list[Patch]:
    return [(Transactions, "load", lambda self, items: None)]


@mutant("a new leader does not know which transactions are open", "C14 C12", EXACTLY_ONCE, "kill", "drain", caught_by=5)
def forget_what_is_open() -> list[Patch]:
    real = Isolation.restore.__func__  # type: ignore[attr-defined]

    def restore(cls: type[Isolation], data: bytes, at: int) -> tuple[Isolation, int]:
        one, end = real(cls, data, at)
        one._open.clear()
        one._decided.clear()
        one._sum_up()
        return one, end

    return [(Isolation, "restore", classmethod(restore))]


@mutant("nobody is asked whether a transaction is open", "C29 C12 C16", EXACTLY_ONCE)
def add_no_partition() -> list[Patch]:
    async def add_partition(self: TransactionBatches, transaction: Any) -> None:
        waiting = self._waiting.pop(transaction)
        self._held_bytes -= sum(len(batch) for batch, _ in waiting)
        self._enter(transaction, waiting, None)

    return [(TransactionBatches, "_add_partition", add_partition)]


@mutant("the next transaction begins before the last is drained", "C12 C16", EXACTLY_ONCE, "kill", "bad_weather")
def end_before_all_is_written() -> list[Patch]:
    async def drain(self: Writer) -> None:
        return None

    return [(Writer, "drain", drain)]


@mutant("after an abort reading goes on behind what was read", "C16", EXACTLY_ONCE)
def go_on_after_an_abort() -> list[Patch]:
    async def rewind(self: GroupConsumer[Any]) -> None:
        return None

    return [(GroupConsumer, "rewind", rewind)]


@mutant("markers are handed out as records", "C14 C20 C16", EXACTLY_ONCE)
def hand_out_markers() -> list[Patch]:
    return [(contents, "_hidden", lambda reader, header, uncommitted: False)]


# ---- share groups


@mutant(
    "an acknowledgement is confirmed before it is kept",
    "C34",
    SHARED,
    "kill",
    "store_slow",
    member_fault_every_s=12.0,
    caught_by=0,
)
def confirm_acknowledgements_at_once() -> list[Patch]:
    real = SharePartition.acknowledge

    def acknowledge(self: SharePartition, change: Any, done: Any) -> Any:
        result = real(self, change, lambda _: None)
        done(None)
        return result

    return [(SharePartition, "acknowledge", acknowledge)]


@mutant("some of what was accepted is acquired again when its lock runs out", "C34", SHARED)
def acquire_what_was_accepted() -> list[Patch]:
    real = Shares.accept

    def accept(self: Shares, holder: Any, firsts: Sequence[int], ends: Sequence[int]) -> Any:
        if firsts and firsts[0] % 5 == 0:
            return []
        return real(self, holder, firsts, ends)

    return [(Shares, "accept", accept)]


@mutant("what is given back is acquired by nobody any more", "C29 C35", SHARED)
def forget_what_is_given_back() -> list[Patch]:
    return [(ShareWindow, "give_again", lambda self, first, end, due, why: None)]


@mutant("a rejected record is acknowledged without a dead letter", "C35", SHARED)
def drop_dead_letters() -> list[Patch]:
    async def write(self: DeadLetters, offset: int, dead: Any) -> bool:
        return True

    return [(DeadLetters, "_publish", write)]


@mutant("a new leader begins behind all that was acquired", "C35 C29", SHARED, "kill", "drain")
def begin_behind_what_was_acquired() -> list[Patch]:
    real = StoredState.take

    def take(self: StoredState) -> bytes:
        window = self._state.shares.window
        for first in range(window.floor, window.next):
            window.marks[first - window.base] = 255
        window.advance()
        return real(self)

    return [(StoredState, "take", take)]


@mutant(
    "a caller's acknowledgement is confirmed though its lock is over",
    "C34 C35",
    SHARED,
    callers=3,
    fault_every_s=20.0,
    caught_by=4,
)
def confirm_what_is_lost() -> list[Patch]:
    real = AcquireCalls._acknowledge

    async def acknowledge(self: AcquireCalls, request: Any, said: Any) -> Any:
        await real(self, request, said)
        return []

    return [(AcquireCalls, "_acknowledge", acknowledge)]
