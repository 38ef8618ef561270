"""Locks that no stream holds: what is remembered of them, and for how long."""

from __future__ import annotations

from random import Random

from comet_broker.core.share_tickets import Tickets
from comet_broker.core.shares import Holder, Options, Readable, Shares, WindowSnapshot

ACK, NACK = 1, 2


def make(tickets_max: int = 3, remembered_max: int = 6, remembered_s: float = 10.0) -> Tickets:
    return Tickets(tickets_max=tickets_max, remembered_max=remembered_max, remembered_s=remembered_s)


def opened(tickets: Tickets, number: int, records: int = 1) -> Holder:
    holder = Holder(records)
    assert tickets.has_room()
    tickets.add(number, holder)
    return holder


def test_what_was_said_before_is_not_lost_when_it_is_said_again() -> None:
    tickets = make()
    opened(tickets, 7, 3)
    ticket = tickets.find(7)
    assert ticket is not None
    assert tickets.acknowledged(ticket, ACK, [0, 5], [3, 6], [(5, 6)]) == [(5, 6)]
    assert tickets.acknowledged(ticket, ACK, [0, 5], [3, 6], [(0, 3), (5, 6)]) == [(5, 6)], (
        "what was never its stays lost"
    )
    assert tickets.acknowledged(ticket, NACK, [0], [2], [(0, 2)]) == [(0, 2)], "that was not what was said"
    assert tickets.acknowledged(ticket, ACK, [1], [2], [(1, 2)]) == []


def test_an_open_ticket_stays_and_one_that_is_over_goes_in_time() -> None:
    tickets = make()
    first, second = opened(tickets, 1), opened(tickets, 2)
    ticket = tickets.find(1)
    assert ticket is not None
    tickets.acknowledged(ticket, ACK, [0], [1], [])
    tickets.tick(0.0)
    first.open = second.open = 0
    tickets.tick(1.0)
    assert (tickets.find(1), tickets.find(2)) == (ticket, None), "of which nothing was said is gone at once"
    tickets.tick(10.9)
    assert tickets.find(1) is ticket
    tickets.tick(11.0)
    assert len(tickets) == 0


def test_there_are_so_many_open_ones_and_no_more() -> None:
    tickets = make(tickets_max=2)
    first = opened(tickets, 1)
    opened(tickets, 2)
    assert not tickets.has_room()
    assert tickets.open == 2
    first.open = 0
    assert tickets.has_room(), "what is over makes way"
    assert tickets.find(1) is None


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    tickets = make(remembered_max=6)
    for number in range(3):
        opened(tickets, number, 3)
        ticket = tickets.find(number)
        assert ticket is not None
        assert tickets.acknowledged(ticket, ACK, [0], [3], []) == []
    told = []
    for number in range(3):
        found = tickets.find(number)
        assert found is not None
        told.append(len(found.remembered))
    assert told == [0, 3, 3]


def test_acknowledging_again_and_again_comes_to_the_same_whatever_happens_between() -> None:
    """Against a machine: each acknowledgement is said up to three times, mixed with those of others."""
    for seed in range(50):
        random = Random(seed)
        shares = Shares(WindowSnapshot(0, b"", {}), Options(deliveries_max=100), window_max=100, dead_max=10)
        tickets = make(tickets_max=100, remembered_max=10_000)
        said: list[tuple[int, int, int]] = []
        done: set[int] = set()
        for number in range(1, 30):
            holder = Holder()
            granted = shares.acquire(0.0, holder, random.randint(1, 5), Readable(0, 40, [(0, 40)]))
            if granted:
                tickets.add(number, holder)
            for first, end, _ in granted:
                said += [(number, random.choice((ACK, NACK)), offset) for offset in range(first, end)]
            for number_said, kind, offset in random.sample(said, min(len(said), 6)):
                ticket = tickets.find(number_said)
                assert ticket is not None
                if kind == ACK:
                    lost = shares.accept(ticket.holder, [offset], [offset + 1])
                else:
                    lost = shares.release(0.0, ticket.holder, [offset], [offset + 1])
                assert tickets.acknowledged(ticket, kind, [offset], [offset + 1], lost) == []
                assert offset not in done or kind == NACK or ticket.remembered[offset] == ACK
                if kind == ACK:
                    done.add(offset)
        for record in range(shares.window.floor):
            assert record in done, "nothing else was acknowledged"
