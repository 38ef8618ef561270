"""The dispatch of records against a list that remembers everything."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from comet.handlers.dispatch import Dispatch, Task
from comet.types import TopicPartition

CONCURRENCY, WINDOW = 3, 8
TPS = [TopicPartition("in", 0), TopicPartition("in", 1), TopicPartition("other", 0)]


@dataclass
class Line:
    """One record, as the oracle knows it."""

    tp: TopicPartition
    life: int  # of the partition: it is another one each time it is one's own again
    offset: int
    end: int
    key: bytes | None
    state: str = "waiting"  # then running, then done or dropped; or given up


class DispatchMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.dispatch: Dispatch[Line] = Dispatch(CONCURRENCY, WINDOW)
        self.lines: list[Line] = []
        self.lives = dict.fromkeys(TPS, 0)
        self.ends = dict.fromkeys(TPS, 0)
        self.open: set[TopicPartition] = set()
        self.known: set[TopicPartition] = set()
        self.running: list[Task[Line]] = []

    def held(self) -> int:
        return sum(line.state in {"waiting", "running"} for line in self.lines)

    @precondition(lambda self: self.held() < WINDOW)
    @rule(
        tp=st.sampled_from(TPS),
        key=st.sampled_from([None, b"a", b"b"]),
        gap=st.integers(0, 2),
        size=st.integers(1, 3),
    )
    def add(self, tp: TopicPartition, key: bytes | None, gap: int, size: int) -> None:
        if tp not in self.open:
            self.lives[tp] += 1
            self.open.add(tp)
            self.known.add(tp)
        offset = self.ends[tp] + gap
        line = Line(tp, self.lives[tp], offset, offset + size, key)
        self.ends[tp] = line.end
        self.lines.append(line)
        self.dispatch.add(tp, offset, key, line, end=line.end)

    def may_run(self, line: Line) -> bool:
        if line.state != "waiting" or len(self.running) >= CONCURRENCY:
            return False
        before = self.lines[: self.lines.index(line)]
        unfinished = [one for one in before if one.tp == line.tp and one.key == line.key]
        return line.key is None or all(one.state not in {"waiting", "running"} for one in unfinished)

    @rule()
    def take(self) -> None:
        task = self.dispatch.take()
        may = [line for line in self.lines if self.may_run(line)]
        assert (task is None) == (not may)
        if task is not None:
            assert task.item is may[0], "the oldest that may run"
            task.item.state = "running"
            self.running.append(task)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), drop=st.booleans())
    def end(self, data: st.DataObject, drop: bool) -> None:
        task = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        task.item.state = "dropped" if drop else "done"
        if drop:
            self.dispatch.dropped(task)
        else:
            self.dispatch.done(task)

    @rule(tps=st.sets(st.sampled_from(TPS)), forget=st.booleans())
    def close(self, tps: set[TopicPartition], forget: bool) -> None:
        for line in self.lines:
            if line.tp in tps and line.state == "waiting":
                line.state = "given up"
        self.open -= tps
        if forget:
            self.known -= tps
            self.dispatch.forget(tps)
        else:
            self.dispatch.close(tps)

    @invariant()
    def positions_are_those_of_the_lowest_unfinished(self) -> None:
        for tp in TPS:
            if tp not in self.known:
                assert self.dispatch.position(tp) is None
                continue
            own = [line for line in self.lines if line.tp == tp and line.life == self.lives[tp]]
            open_offsets = [line.offset for line in own if line.state != "done"]
            assert self.dispatch.position(tp) == min(open_offsets, default=own[-1].end)
            assert self.dispatch.running_in(tp) == sum(line.state == "running" for line in own)

    @invariant()
    def room_is_what_is_left(self) -> None:
        assert self.dispatch.room == WINDOW - self.held()
        assert self.dispatch.running == len(self.running) <= CONCURRENCY


DispatchMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestDispatch = DispatchMachine.TestCase
