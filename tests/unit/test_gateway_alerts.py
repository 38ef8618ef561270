"""Alerts without a broker: rules, the state machine on a virtual clock, the journal, and what a rule sees."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.records import decode, encode
from comet.values.record import RecordBatch
from comet_gateway.alerts import journal
from comet_gateway.alerts.evaluation import Observation, decide
from comet_gateway.alerts.journal import (
    Acknowledgement,
    AlertBook,
    Checkpoint,
    Muted,
    Record,
    RuleDeleted,
    RuleStored,
    Transition,
)
from comet_gateway.alerts.observing import RecordWatch, of_cluster
from comet_gateway.alerts.rule import RULES_MAX, Rule, WebhookChannel, check
from comet_gateway.http.problems import Problem
from comet_web import facts

ID = "0123456789ab"
S = 1_000_000
BEGIN = 1_000 * S
HOOK = WebhookChannel("https://hooks.example.com/secret")


def rule(**given: Any) -> Rule:
    return Rule(
        **{"id": ID, "name": "test", "kind": "value", "threshold": 1.0, "topic": "quotes", "field": "price", **given}
    )


class World:
    """A journal and its book, with a virtual clock."""

    def __init__(self, one: Rule) -> None:
        self.book = AlertBook()
        self.log: list[bytes] = []
        self.now_us = BEGIN
        self.notices: list[str] = []
        self.write([RuleStored(one)])

    @property
    def known(self) -> journal.RuleState:
        return self.book.rules[ID]

    def write(self, records: list[Record]) -> None:
        for record in records:
            value = journal.encode(record)
            if (notice := self.book.take(len(self.log), value)) is not None:
                self.notices.append(notice.id)
            self.log.append(value)

    def see(self, breached: bool | None, *, after_s: float = 1, problem: str = "") -> str:
        self.now_us += round(after_s * S)
        self.write(decide(self.known, Observation(breached, 1.5, "seen", problem), self.now_us))
        return self.known.state


def again(log: list[bytes], *, since: int = 0) -> AlertBook:
    """The book of a gateway that reads the log, which begins at an offset."""
    book = AlertBook()
    for offset, value in enumerate(log[since:], since):
        book.take(offset, value)
    return book


# ---- states


def test_a_breach_waits_fires_and_ends_with_a_notice_each() -> None:
    world = World(rule(for_s=3, channels=(HOOK,)))
    assert [world.see(True) for _ in range(4)] == ["pending", "pending", "pending", "firing"]
    assert [world.see(True), world.see(False), world.see(False)] == ["firing", "resolved", "resolved"]
    assert world.notices == [f"{ID}-2-firing", f"{ID}-2-resolved"]


def test_a_short_breach_is_not_told() -> None:
    world = World(rule(for_s=3))
    assert [world.see(True), world.see(False), world.see(True), world.see(True)] == [
        "pending",
        "ok",
        "pending",
        "pending",
    ]
    assert world.notices == []


def test_what_is_unknown_changes_no_state_and_says_why() -> None:
    world = World(rule())
    assert world.see(True) == "firing"
    assert world.see(None, problem="no broker answers") == "firing"
    assert world.known.problem == "no broker answers"
    assert world.see(None, problem="no broker answers") == "firing"
    assert len([one for one in world.log if b'"unable"' in one]) == 1
    assert world.see(False) == "resolved"
    assert world.known.problem == ""


def test_within_its_cool_down_a_firing_is_told_late_and_only_if_it_lasts() -> None:
    world = World(rule(cool_down_s=60))
    world.see(True)
    world.see(False)
    assert world.see(True, after_s=10) == "firing"
    assert world.see(False) == "resolved"  # over before the cool-down is
    assert world.see(True) == "firing"
    assert world.notices == [f"{ID}-1-firing", f"{ID}-1-resolved"]
    world.see(True, after_s=60)
    assert world.notices[2:] == [f"{ID}-5-firing"]


def test_a_muted_alert_changes_its_state_and_is_told_once_the_mute_ends() -> None:
    world = World(rule())
    world.write([Muted(ID, world.now_us + 10 * S, "ann", world.now_us)])
    assert world.see(True) == "firing"
    assert world.notices == []
    world.see(True, after_s=10)
    assert world.notices == [f"{ID}-1-firing"]
    world.write([Muted(ID, world.now_us + 10 * S, "ann", world.now_us)])
    assert world.see(False) == "resolved"
    assert len(world.notices) == 1
    world.see(False, after_s=10)
    assert world.notices[1:] == [f"{ID}-1-resolved"]


def test_an_acknowledged_firing_is_told_no_more_and_the_next_one_is() -> None:
    world = World(rule(cool_down_s=60))
    world.see(True)
    world.see(False)
    world.see(True)  # held back
    world.write([Acknowledgement(ID, world.known.number, "ann", world.now_us)])
    world.see(True, after_s=100)
    assert len(world.notices) == 2
    world.see(False)
    world.see(True, after_s=100)
    assert world.notices[2:] == [f"{ID}-5-firing"]


def test_another_condition_begins_again_and_another_name_does_not() -> None:
    world = World(rule())
    world.see(True)
    changes: list[dict[str, Any]] = [{"name": "renamed"}, {"threshold": 2.0}, {"enabled": False}]
    states = []
    for change in changes:
        world.write([RuleStored(rule(**change))])
        states.append(world.known.state)
    assert states == ["firing", "ok", "ok"]
    assert world.see(True) == "ok"


def test_of_two_gateways_that_evaluate_only_one_changes_a_state() -> None:
    world = World(rule())
    both = decide(world.known, Observation(True), world.now_us) * 2
    world.write(both)
    assert (world.known.step, world.notices) == (1, [f"{ID}-1-firing"])
    world.write([Transition(ID, 1, "resolved", world.now_us)])  # of one that slept
    assert world.known.state == "firing"


@given(st.lists(st.tuples(st.sampled_from([True, False, None]), st.integers(1, 90)), max_size=60), st.data())
def test_any_run_keeps_the_promises(seen: list[tuple[bool | None, int]], data: st.DataObject) -> None:
    """Each firing is told at most once, each end only after its firing, firings not closer than the cool-down; and the
    log makes the same state again, whole or from a checkpoint on."""
    world = World(rule(for_s=data.draw(st.sampled_from([0, 5])), cool_down_s=data.draw(st.sampled_from([0, 60]))))
    told_at: list[int] = []
    checkpoint = None
    for breached, after_s in seen:
        before = len(world.notices)
        world.see(breached, after_s=after_s)
        if any(one.endswith("firing") for one in world.notices[before:]):
            assert world.known.state == "firing"
            told_at.append(world.now_us)
        if checkpoint is None and data.draw(st.booleans()):
            through = data.draw(st.integers(0, len(world.log) - 1))
            world.write([Checkpoint(through, again(world.log[: through + 1]).image())])
            checkpoint = through
    assert len(set(world.notices)) == len(world.notices)
    firings = [one.split("-")[1] for one in world.notices if one.endswith("firing")]
    ends = [one.split("-")[1] for one in world.notices if one.endswith("resolved")]
    assert [one for one in firings if one in ends] == ends
    gap = world.known.rule.cool_down_s * S
    assert all(later - earlier >= gap for earlier, later in pairwise(told_at))
    for since in (0, None if checkpoint is None else checkpoint + 1):
        if since is not None:
            assert again(world.log, since=since).rules == world.book.rules


# ---- the journal


def test_a_reader_without_the_beginning_waits_for_the_checkpoint() -> None:
    world = World(rule())
    world.see(True)
    world.write([Muted(ID, 0, "ann", world.now_us)])
    through = len(world.log) - 1
    image = again(world.log).image()
    world.see(False)  # between what the checkpoint holds and its own place
    world.write([Checkpoint(through, image)])
    late = AlertBook()
    for offset, value in enumerate(world.log[through + 1 :], through + 1):
        assert not late.complete or offset == through + 1
        late.take(offset, value)
    assert late.complete
    assert late.rules == world.book.rules
    assert late.rules[ID].state == "resolved"
    for since in range(1, through + 1):  # as if the deletion had not come: what the checkpoint holds counts once
        assert list(again(world.log, since=since).history) == list(world.book.history)


def test_foreign_records_are_counted_and_change_nothing() -> None:
    world = World(rule())
    before = world.book.rules[ID]
    for value in (None, b"", b"{}", b"[" * 100_000, b'{"type":"rule","rule":{"id":"../x"}}', b"\xff"):
        world.book.take(world.book.next, value)
    assert world.book.unread == 6
    assert world.book.rules == {ID: before}


def test_everything_that_is_kept_has_a_bound() -> None:
    book = AlertBook()
    for number in range(RULES_MAX + 20):
        one = rule(id=f"{number:012x}", channels=(HOOK,))
        book.take(book.next, journal.encode(RuleStored(one)))
        book.take(book.next, journal.encode(Transition(one.id, 1, "firing", BEGIN)))
        book.take(book.next, journal.encode(journal.Notified(one.id, 1, "firing", BEGIN)))
    assert len(book.rules) == RULES_MAX
    for number in range(500):
        book.take(
            book.next,
            journal.encode(RuleStored(rule(id=f"{number % RULES_MAX:012x}", threshold=number, channels=(HOOK,)))),
        )
        step = book.rules[f"{number % RULES_MAX:012x}"].step + 1
        book.take(book.next, journal.encode(Transition(f"{number % RULES_MAX:012x}", step, "firing", BEGIN)))
        book.take(book.next, journal.encode(journal.Notified(f"{number % RULES_MAX:012x}", step, "firing", BEGIN)))
    assert len(book.outstanding) == journal.OUTSTANDING_MAX
    assert len(book.history) == journal.HISTORY_MAX
    assert {one.outcome for one in book.deliveries} == {"dropped"}
    assert "secret" not in repr(list(book.deliveries))


def test_a_deleted_rule_is_gone() -> None:
    world = World(rule())
    world.write([RuleDeleted(ID, "ann", BEGIN)])
    assert not world.book.rules
    world.write([Transition(ID, 1, "firing", BEGIN)])
    assert not world.book.rules


# ---- rules


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"field": ""}, "field: a rule of the kind value needs it"),
        ({"group": "engine"}, "group: a rule of the kind value has none"),
        ({"filter": "a or b"}, "filter, at character"),
        ({"field": "a) && exists(b"}, "field, at character"),
        ({"threshold": float("nan")}, "finite"),
        ({"topic": "__audit"}, "internal"),
        ({"name": "a\nBcc: x@y.z"}, "printable"),
        ({"kind": "stale", "field": "", "operator": "below"}, "only above"),
        ({"kind": "lag", "topic": "", "field": "", "group": "g", "threshold": -1}, "0 or more"),
        ({"channels": ({"to": ["a@b.c\r\nBcc: x@y.z"]},)}, "is not an e-mail address"),
        ({"channels": ({"url": "http://user:pass@hooks.example.com/"},)}, "no user"),
        ({"channels": ({"url": "file:///etc/passwd"},)}, "must begin with https"),
        ({"channels": ({"url": "http://hooks.example.com/\r\nX: y"},)}, "printable ASCII"),
    ],
)
def test_a_wrong_rule_is_refused_with_what_to_do(given: dict[str, Any], part: str) -> None:
    channels = tuple({"type": "email" if "to" in one else "webhook", **one} for one in given.pop("channels", ()))
    one = msgspec.structs.replace(rule(), **given)
    one = msgspec.convert({**msgspec.to_builtins(one), "channels": channels}, Rule)
    with pytest.raises(Problem) as raised:
        check(one)
    assert part in raised.value.detail


# ---- what a rule sees


def watch(**given: Any) -> RecordWatch:
    return RecordWatch(rule(**given), BEGIN)


def see(one: RecordWatch, key: bytes | None, document: Any, now_us: int) -> None:
    """Shows a record to a watch, as its topic's reader does."""
    value = None if document is None else json.dumps(document).replace("Infinity", "1e400").encode()
    batch = decode(b"".join(encode([value], keys=[key], timestamps=1)))
    for _ in one.rows(RecordBatch("quotes", 0, batch), range(1)):
        one.take(document, now_us)


def test_a_number_of_matching_records_alone_counts() -> None:
    one = watch(key="ACME", filter="side=buy", threshold=150.0)
    assert one.observe(BEGIN).breached is None
    see(one, b"OTHER", {"price": 200, "side": "buy"}, BEGIN)
    see(one, b"ACME", {"price": 200, "side": "sell"}, BEGIN)
    see(one, b"ACME", None, BEGIN)
    assert one.observe(BEGIN) == Observation(None)
    see(one, b"ACME", {"price": "n/a", "side": "buy"}, BEGIN)
    assert one.observe(BEGIN).problem == "matching records have no number in price"
    see(one, b"ACME", {"price": "150.5", "side": "buy"}, BEGIN)
    assert one.observe(BEGIN) == Observation(True, 150.5, "price is 150.5")
    see(one, b"ACME", {"price": 1e400, "side": "buy"}, BEGIN)
    assert one.observe(BEGIN).value == 150.5


def test_a_change_is_of_the_window_in_bounded_memory() -> None:
    one = watch(kind="change", window_s=60, threshold=5.0)
    for second in range(600):
        see(one, None, {"price": 100 + second / 10}, BEGIN + second * S)
    rise = one.observe(BEGIN + 599 * S)
    assert rise.value == pytest.approx((159.9 - 153.9) / 153.9 * 100, abs=0.1)
    assert rise.breached is False
    see(one, None, {"price": 170}, BEGIN + 600 * S)
    assert one.observe(BEGIN + 600 * S).breached
    assert len(one._buckets) <= 61
    falling = watch(kind="change", window_s=60, threshold=5.0, operator="below")
    for price in (100, 94):
        see(falling, None, {"price": price}, BEGIN)
    assert falling.observe(BEGIN).breached


def test_a_count_forgets_what_is_older_than_its_window() -> None:
    one = watch(kind="count", field="", window_s=60, threshold=2.0)
    for second in (0, 1, 2):
        see(one, None, None, BEGIN + second * S)
    assert one.observe(BEGIN + 2 * S) == Observation(True, 3, "3 records in 60 s")
    assert one.observe(BEGIN + 100 * S).value == 0


def test_silence_counts_from_the_last_matching_record() -> None:
    one = watch(kind="stale", field="", key="ACME", threshold=10.0)
    assert not one.observe(BEGIN + 9 * S).breached
    assert one.observe(BEGIN + 10 * S).breached
    see(one, b"OTHER", None, BEGIN + 9 * S)
    assert one.observe(BEGIN + 10 * S).breached
    see(one, b"ACME", None, BEGIN + 9 * S)
    assert not one.observe(BEGIN + 10 * S).breached


def topic(name: str, **figures: Any) -> facts.Topic:
    known = {"internal": False, "partitions": 3, "replicas": 3, "in_sync": 3, "under_replicated": 0, "offline": 0}
    return facts.Topic(name, retention={}, **{**known, **figures})


def test_groups_and_partitions_are_seen_in_the_facts_of_the_cluster() -> None:
    group = facts.Group("engine", "consumer", "stable", 1, ("a", "b"), 1, lag=7, lags={"a": 5, "b": 2}, age_s=61.0)
    topics = {one.name: one for one in (topic("a", offline=1, last_us=BEGIN - 9 * S), topic("b", under_replicated=2))}
    cluster = facts.Cluster(BEGIN, topics=topics, groups={"engine": group})

    def see(**given: Any) -> Observation:
        return of_cluster(rule(field="", **{"topic": "", **given}), cluster, BEGIN)

    assert see(kind="lag", group="engine", threshold=6) == Observation(True, 7, "lag 7 records")
    assert see(kind="lag", group="engine", topic="a", threshold=6).breached is False
    assert see(kind="lag_seconds", group="engine", threshold=60) == Observation(True, 61, "lag 61 s")
    assert see(kind="lag", group="gone", threshold=6).problem == "group gone does not exist"
    assert see(kind="lag", group="engine", topic="c", threshold=6).breached is None
    assert see(kind="offline", threshold=0) == Observation(True, 1, "1 partitions offline: a")
    assert see(kind="offline", topic="b", threshold=0).breached is False
    assert see(kind="under_replicated", threshold=1) == Observation(True, 2, "2 partitions under-replicated: b")
    assert see(kind="stale", topic="a", threshold=9) == Observation(True, 9, "no record for 9 s")
    assert see(kind="stale", topic="c", threshold=9).problem == "topic c does not exist"
    silent = facts.Cluster(BEGIN, reachable=False, reason="no route")
    assert of_cluster(rule(kind="offline", topic="", field=""), silent, BEGIN).problem == "no broker answers: no route"
