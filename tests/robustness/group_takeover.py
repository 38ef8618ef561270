"""How long a partition is without an owner that handles it, while nothing else is wrong: from the moment that a member
is asked to leave, or is killed, until another has handled a record of the partition."""

from __future__ import annotations

import asyncio
import time
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import comet
from tests.robustness.cluster import ClusterProcesses
from tests.robustness.group_world import STALL_S_MAX, MemberProcess
from tests.waiting import pace, until

QUIET: Final = "quiet"
PARTITIONS: Final = 10
MEMBERS: Final = 3
STOOD_STILL_S: Final = 0.5
TRIES: Final = 6  # for each figure of both kinds
FEED_S: Final = 0.02  # between two records of a partition


async def take_over_ms(one: ClusterProcesses, folder: Path, times: int) -> tuple[list[float], list[float]]:
    """Per partition that went to another: after members left, and after members were killed."""
    members = [
        MemberProcess(folder, one.addresses, "at_least_once", QUIET, QUIET, number) for number in range(MEMBERS)
    ]  # fmt: skip
    stop = asyncio.Event()
    feeding = asyncio.create_task(_feed(one, stop))
    left: list[list[float]] = []
    killed: list[list[float]] = []
    try:
        for member in members:
            member.launch()
        number = 0
        while number < TRIES * times and not len(left) == len(killed) == times:
            leaves = len(left) <= len(killed)
            for member in members:
                await _has_its_share(member)
            await pace(1)  # positions that are committed, heartbeats that are sent
            victim = members[number % MEMBERS]
            found = await _take_over(victim, [member for member in members if member is not victim], leaves=leaves)
            victim.launch()
            number += 1
            if found:
                (left if leaves else killed).append(found)
    finally:
        stop.set()
        await feeding
        for member in members:
            await asyncio.to_thread(member.terminate)
    complaints = [complaint for member in members for complaint in member.complaints()]
    assert not complaints, complaints
    return [*chain(*left)], [*chain(*killed)]


async def _feed(one: ClusterProcesses, stop: asyncio.Event) -> None:
    async with comet.Producer(one.addresses, acks=1) as producer:
        count = 0
        while not stop.is_set():
            for partition in range(PARTITIONS):
                await producer.send(QUIET, b"q:%d" % count, partition=partition)
            count += 1
            await pace(FEED_S)
        await producer.flush()


async def _has_its_share(member: MemberProcess) -> None:
    """It owns as many partitions as it is to, and has handled something of each."""
    member.life.read()

    def has_it() -> bool:
        member.life.read()
        seen: set[str] = set()
        for note in member.life.notes:
            if note.what == "X":
                seen.discard(note.words[0])
            elif note.what == "H":
                seen.add(note.words[0])
        return len(seen) in {PARTITIONS // MEMBERS, PARTITIONS // MEMBERS + 1}

    if not await until(has_it, within_s=STALL_S_MAX):
        raise AssertionError(f"{member.life.name} does not get its share of {PARTITIONS} partitions")


async def _take_over(victim: MemberProcess, others: list[MemberProcess], *, leaves: bool) -> list[float]:
    for member in (victim, *others):
        member.life.read()
    owned: set[str] = set()
    for note in victim.life.notes:
        if note.what in "AX":
            (owned.add if note.what == "A" else owned.discard)(note.words[0])
    began = time.monotonic()
    if leaves:
        victim.begin_leaving()
    else:
        await asyncio.to_thread(victim.kill)
    first: dict[str, float] = {}
    looks = [began]

    def taken_over() -> bool:
        looks.append(time.monotonic())
        for member in others:
            for note in member.life.read():
                if note.what == "H" and note.words[0] in owned and note.at > began:
                    first.setdefault(note.words[0], note.at)
        return len(first) == len(owned)

    if not await until(taken_over, within_s=STALL_S_MAX, every_s=0.01):
        raise AssertionError(f"of {sorted(owned)}, which {victim.life.name} had, {sorted(first)} were taken over")
    await asyncio.to_thread(victim.terminate)
    if max(after - before for before, after in pairwise(looks)) > STOOD_STILL_S:
        return []  # the machine had something else to do, and this is no figure
    return [(at - began) * 1000 for at in first.values()]
