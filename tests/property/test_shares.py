"""Share groups against an oracle that keeps every record by itself."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from comet_broker.core.shares import Holder, Options, Readable, Shares, WindowSnapshot
from tests.property.shares_oracle import Is, Oracle, Record

WINDOW = 24
RECORDS = 80
DEAD_MAX = 1_000
Step = tuple[str, int, int, int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["acquire"] * 5
            + ["accept"] * 4
            + [
                "release",
                "release",
                "reject",
                "give_back",
                "extend",
                "time",
                "expire",
                "drop",
                "restart",
                "more",
                "delete",
            ]
        ),
        st.integers(0, 200),
        st.integers(0, 200),
        st.integers(0, 200),
    ),
    max_size=120,
)
OPTIONS = st.builds(
    Options,
    lock_s=st.just(10.0),
    deliveries_max=st.integers(1, 4),
    by_key=st.booleans(),
    dead_letters=st.booleans(),
)


class Run:
    """One machine and its oracle, driven by numbers."""

    def __init__(self, options: Options, seed: int) -> None:
        random = Random(seed)
        self.records = [
            Record(
                offset,
                random.choice([None, 1, 2, 3, offset]),
                Is.NOTHING if random.random() < 0.3 else Is.FREE,
            )
            for offset in range(RECORDS)
        ]
        self.oracle = Oracle(self.records, options, WINDOW)
        self.options = options
        self.shares = self.restored(WindowSnapshot(0, b"", {}))
        self.holders = [Holder() for _ in range(3)]
        self.now = 0.0
        self.end = 10
        self.floor = 0

    def restored(self, snapshot: WindowSnapshot) -> Shares:
        return Shares(snapshot, self.options, window_max=WINDOW, dead_max=DEAD_MAX)

    def readable(self, first: int, end: int) -> Readable:
        runs: list[tuple[int, int]] = []
        for record in self.records[first:end]:
            if record.state is not Is.NOTHING:
                if runs and runs[-1][1] == record.offset:
                    runs[-1] = (runs[-1][0], record.offset + 1)
                else:
                    runs.append((record.offset, record.offset + 1))
        return Readable(first, end, runs, [record.key for record in self.records[first:end]])

    # ---- steps

    def acquire(self, a: int, b: int, c: int) -> None:
        wanted = self.shares.window.wanted(self.now, self.end)
        if wanted is None:
            self.check_nothing_is_free()
            return
        first, end = max(self.oracle.start, wanted - a % 4), min(self.end, wanted + 1 + b % 30)
        holder = self.holders[c % 3]
        granted = self.shares.acquire(self.now, holder, 1 + c % 12, self.readable(first, end))
        self.oracle.granted(holder, granted, self.now, self.end)
        assert granted or self.shares.window.wanted(self.now, self.end) != wanted, "who asks again and again gets ahead"

    def check_nothing_is_free(self) -> None:
        reach = min(self.end, self.shares.window.floor + WINDOW)
        free = [one for one in self.records[self.oracle.start : reach] if self.oracle.free(one, self.now)]
        assert not free, f"{free} could be given"

    def chosen(self, a: int, b: int) -> tuple[int, int]:
        first = self.shares.window.floor + a % (WINDOW + 4) - 2
        return max(first, 0), max(first, 0) + 1 + (b % 6 if b % 2 else 0)

    def acknowledge(
        self, a: int, b: int, c: int, act: Callable[[Holder, int, int], list[tuple[int, int]]]
    ) -> list[Record]:
        """Says `act` of a range; checks who it was said for, and returns those."""
        holder, (first, end) = self.holders[c % 3], self.chosen(a, b)
        held, lost = self.oracle.held(holder, first, end), self.oracle.lost(holder, first, end)
        found = act(holder, first, end)
        assert {offset for run, upto in found for offset in range(run, upto)} == lost
        return held

    def accept(self, a: int, b: int, c: int) -> None:
        for record in self.acknowledge(a, b, c, lambda holder, f, e: self.shares.accept(holder, [f], [e])):
            record.state, record.holder = Is.ACKNOWLEDGED, None

    def release(self, a: int, b: int, c: int) -> None:
        delay_s = float(c % 7)
        for record in self.acknowledge(
            a, b, c, lambda holder, f, e: self.shares.release(self.now, holder, [f], [e], delay_s)
        ):
            self.oracle.give_back(record, self.now + delay_s if delay_s else 0.0)

    def reject(self, a: int, b: int, c: int) -> None:
        for record in self.acknowledge(a, b, c, lambda holder, f, e: self.shares.reject(holder, [f], [e], "bad")):
            record.state, record.holder = Is.DEAD, None

    def give_back(self, a: int, b: int, c: int) -> None:
        for record in self.acknowledge(a, b, c, lambda holder, f, e: self.shares.give_back(holder, [f], [e])):
            record.attempts -= 1
            self.oracle.give_back(record)

    def extend(self, a: int, b: int, c: int) -> None:
        for record in self.acknowledge(a, b, c, lambda holder, f, e: self.shares.extend(self.now, holder, [f], [e])):
            record.deadline = self.now + self.options.lock_s

    def time(self, a: int, _: int, __: int) -> None:
        self.now += a % 8

    def expire(self, _: int, __: int, ___: int) -> None:
        self.shares.expire(self.now)
        self.oracle.expire(self.now)

    def drop(self, _: int, __: int, c: int) -> None:
        holder = self.holders[c % 3]
        self.shares.drop(holder)
        for record in self.records:
            if record.holder is holder and record.state is Is.ACQUIRED:
                self.oracle.give_back(record)
        assert holder.open == 0

    def restart(self, _: int, __: int, ___: int) -> None:
        kept = self.shares.window.snapshot()
        assert len(kept.marks) <= WINDOW
        self.shares = self.restored(kept)
        self.holders = [Holder() for _ in range(3)]
        self.oracle.restart()

    def more(self, a: int, _: int, __: int) -> None:
        self.end = min(RECORDS, self.end + a % 20)

    def delete(self, a: int, _: int, c: int) -> None:
        if c % 4:
            return
        start = min(self.end, self.oracle.start + a % 8)
        self.shares.forget_below(start)
        self.oracle.start = max(start, self.oracle.start)
        for record in self.records[: self.oracle.start]:
            if record.state is not Is.NOTHING:
                record.state, record.holder = Is.ACKNOWLEDGED, None

    # ---- checks

    def check(self) -> None:
        shares, oracle = self.shares, self.oracle
        assert shares.window.floor >= self.floor, "the floor never goes back"
        self.floor = shares.window.floor
        assert len(shares.window.snapshot().marks) <= WINDOW, "what is kept is bounded"
        assert shares.window.floor <= max(oracle.floor, oracle.start), "what is not acknowledged is not below the floor"
        assert shares.in_flight == sum(record.state is Is.ACQUIRED for record in self.records)
        for holder in self.holders:
            assert holder.open == oracle.open_of(holder)
        if self.options.dead_letters:
            below = {record.offset for record in self.records[oracle.start :] if record.state is Is.DEAD}
            assert set(shares.window.dead) <= below
            assert all(dead.attempts >= 1 for dead in shares.window.dead.values())

    def drain(self) -> None:
        """One member takes all that is left: everything ends somewhere."""
        self.end = RECORDS
        self.now += 1_000
        self.expire(0, 0, 0)
        holder = Holder()
        for _ in range(10 * RECORDS):
            wanted = self.shares.window.wanted(self.now, self.end)
            if wanted is None:
                break
            granted = self.shares.acquire(self.now, holder, 7, self.readable(wanted, self.end))
            self.oracle.granted(holder, granted, self.now, self.end)
            firsts, ends = [one.first for one in granted], [one.end for one in granted]
            assert not self.shares.accept(holder, firsts, ends)
            for record in self.records:
                if record.state is Is.ACQUIRED:
                    record.state = Is.ACKNOWLEDGED
        assert self.shares.window.floor == RECORDS, "nothing is left behind"
        assert not [record for record in self.records if not record.over], "nothing is lost"
        if self.options.dead_letters:
            dead = {record.offset for record in self.records[self.oracle.start :] if record.state is Is.DEAD}
            assert set(self.shares.window.dead) == dead


@settings(max_examples=400, deadline=None)
@given(OPTIONS, st.integers(0, 1_000), STEPS)
def test_the_machine_does_what_the_oracle_says(options: Options, seed: int, steps: list[Step]) -> None:
    run = Run(options, seed)
    for name, a, b, c in steps:
        getattr(run, name)(a, b, c)
        run.check()
    run.drain()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1_000), st.integers(1, 5), st.booleans())
def test_few_dead_letters_may_wait_and_none_is_lost(seed: int, dead_max: int, by_key: bool) -> None:
    random = Random(seed)
    options = Options(deliveries_max=2, by_key=by_key, dead_letters=True)
    shares = Shares(WindowSnapshot(0, b"", {}), options, window_max=30, dead_max=dead_max)
    holder = Holder()
    keys = [random.choice([None, 1, 2]) for _ in range(60)]
    ended: list[int] = []
    for _ in range(2_000):
        wanted = shares.window.wanted(0.0, 60)
        if wanted is None:
            if not shares.window.dead:
                break
            buried = random.choice(list(shares.window.dead))
            ended.append(buried)
            shares.window.buried(buried)
        else:
            granted = shares.acquire(0.0, holder, 5, Readable(0, 60, [(0, 60)], keys))
            for first, end, _ in granted:
                shares.reject(holder, [first], [end], "bad")
        assert len(shares.window.dead) <= dead_max
        if random.random() < 0.1:
            kept = shares.window.snapshot()
            shares = Shares(kept, options, window_max=30, dead_max=dead_max)
            holder = Holder()
    assert shares.window.floor == 60
    assert sorted(ended) == list(range(60)), "each is written once where the leader lives on"
