"""What members wrote about themselves (see group_member), held against what is in the topics at the end."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

Slot = tuple[int, int]  # partition, offset


class Note(NamedTuple):
    what: str
    at: float
    words: list[str]


@dataclass(slots=True)
class Life:
    """One process of one member."""

    group: str
    name: str
    path: Path
    notes: list[Note] = field(default_factory=list)
    _read: int = 0

    def read(self) -> list[Note]:
        """What is new in its file; a line that is still being written is left for the next time."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        new = []
        for line in whole.decode().splitlines():
            what, at, *words = line.split(" ")
            new.append(Note(what, float(at), words))
        self.notes += new
        return new

    def count(self, what: str) -> int:
        return sum(note.what == what for note in self.notes)


@dataclass(slots=True)
class Look:
    """What was said to be committed."""

    group: str
    partition: int
    offset: int
    at: float  # when it was said


@dataclass(slots=True)
class Verdict:
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def say(self, violation: str) -> None:
        self.violations.append(violation)


Topic = dict[int, list[tuple[int, bytes]]]  # partition -> (offset, value), as it is in the end


def inputs(verdict: Verdict, topic: Topic, acked: dict[Slot, bytes], sent: dict[bytes, int]) -> None:
    """The input itself: nothing lost, and of each key everything once and in order."""
    there = {(partition, offset): value for partition, records in topic.items() for offset, value in records}
    lost = [slot for slot, value in acked.items() if there.get(slot) != value]
    if lost:
        verdict.say(f"{len(lost)} acknowledged records are not where they were acknowledged, as {lost[:3]}")
    _in_order(verdict, "the input", topic, sent)


def outputs(verdict: Verdict, topic: Topic, given: Topic) -> None:
    """Exactly once: every input has its output, none has two, and those of a key are in order."""
    expected = Counter(value.upper() for records in given.values() for _, value in records)
    found = Counter(value for records in topic.values() for _, value in records)
    missing, twice = expected - found, found - expected
    if missing:
        verdict.say(f"exactly once: {missing.total()} of {expected.total()} are missing, as {sorted(missing)[:5]}")
    if twice:
        verdict.say(f"exactly once: {twice.total()} are there twice or made up, as {sorted(twice)[:5]}")
    _in_order(verdict, "the output", topic, None)


def _in_order(verdict: Verdict, what: str, topic: Topic, sent: dict[bytes, int] | None) -> None:
    last: dict[bytes, int] = defaultdict(lambda: -1)
    for partition, records in topic.items():
        for offset, value in records:
            key, _, number = value.partition(b":")
            if int(number) != last[key] + 1:
                verdict.say(f"{what}: {value!r} at {partition}/{offset} comes after {last[key]}")
            last[key] = int(number)
    for key, count in (sent or {}).items():
        if last[key] != count - 1:
            verdict.say(f"{what}: of {key!r} {count} were acknowledged, and the last there is {last[key]}")


def at_least_once(verdict: Verdict, lives: list[Life], given: Topic, looks: list[Look]) -> None:
    """Everything was handled; before the position behind it was committed; and by each owner one after the other."""
    first: dict[Slot, float] = {}
    handled = 0
    values = {(partition, offset): value for partition, records in given.items() for offset, value in records}
    for life in lives:
        for slot, at, value in _handled_in_order(verdict, life):
            handled += 1
            first[slot] = min(at, first.get(slot, at))
            if values.get(slot) != value:
                verdict.say(f"{life.name} was given {value!r} at {slot}, where {values.get(slot)!r} is")
    missed = [slot for slot in values if slot not in first]
    if missed:
        verdict.say(f"at least once: {len(missed)} of {len(values)} were never handled, as {sorted(missed)[:5]}")
    verdict.counts["handled at least once"] += handled
    verdict.counts["of which again"] += handled - len(first)
    _handled_before_committed(verdict, given, first, looks)


def _handled_in_order(verdict: Verdict, life: Life) -> Iterator[tuple[Slot, float, bytes]]:
    """An owner is given each record once, in order, from what was committed on; after it has lost a partition, only
    what it had in hand."""
    position: dict[int, int] = {}
    gone: dict[int, int] = {}
    for note in life.notes:
        if note.what == "A":
            partition, offset = map(int, note.words)
            position[partition] = offset
        elif note.what == "X":
            partition = int(note.words[0])
            gone[partition] = position.pop(partition, -1)
        elif note.what == "!":
            position.clear()
            gone.clear()
        elif note.what == "H":
            partition, offset = int(note.words[0]), int(note.words[1])
            if offset == position.get(partition):
                position[partition] = offset + 1
            elif offset != gone.pop(partition, None):
                expected = position.get(partition)
                verdict.say(f"{life.name} was given {partition}/{offset} where {expected} was next, at {note.at:.3f} s")
            yield (partition, offset), note.at, note.words[2].encode()


def _handled_before_committed(
    verdict: Verdict, given: Topic, first: dict[Slot, float], looks: list[Look]
) -> None:  # fmt: skip
    latest: dict[int, list[float]] = {}  # up to the offset at each index, when the last of them was first handled
    offsets: dict[int, list[int]] = {}
    for partition, records in given.items():
        offsets[partition] = [offset for offset, _ in records]
        highest, latest[partition] = 0.0, []
        for offset, _ in records:
            highest = max(highest, first.get((partition, offset), float("inf")))
            latest[partition].append(highest)
    for look in looks:
        below = bisect_right(offsets.get(look.partition, []), look.offset - 1)
        if below and latest[look.partition][below - 1] > look.at:
            verdict.say(f"{look.group}: {look.partition} is committed up to {look.offset} before all of it was handled")


def positions_only_rise(verdict: Verdict, looks: list[Look]) -> None:
    highest: dict[tuple[str, int], int] = {}
    for look in looks:  # by one observer, one after the other
        before = highest.get((look.group, look.partition), -1)
        if look.offset < before:
            verdict.say(f"{look.group}: {look.partition} was committed up to {before}, later up to {look.offset}")
        highest[look.group, look.partition] = max(look.offset, before)
    verdict.counts["looks at positions"] += len(looks)


def shared(verdict: Verdict, lives: list[Life], given: Topic) -> None:
    """Every record was accepted, and by one member. Where no answer came, or the member died before it could write it
    down, it may have been. One that was slow to take a record may have been lent it again, and accepts it once more."""
    accepted: dict[Slot, set[str]] = defaultdict(set)
    perhaps: set[Slot] = set()
    lent = 0
    for life in lives:
        open_: set[Slot] = set()
        for note in life.notes:
            if note.what not in {"H", "K", "E", "N", "U"}:
                continue
            slot = int(note.words[0]), int(note.words[1])
            if note.what == "H":
                lent += 1
                open_.add(slot)
                continue
            open_.discard(slot)
            if note.what == "K":
                accepted[slot].add(life.name)
            elif note.what == "U":
                perhaps.add(slot)
        perhaps |= open_
    slots = {(partition, offset) for partition, records in given.items() for offset, _ in records}
    missed = slots - accepted.keys() - perhaps
    if missed:
        verdict.say(f"shared: {len(missed)} of {len(slots)} were never accepted, as {sorted(missed)[:5]}")
    twice = {slot: by for slot, by in accepted.items() if len(by) > 1}
    if twice:
        verdict.say(f"shared: {len(twice)} were accepted by more than one, as {sorted(twice.items())[:5]}")
    verdict.counts["shared: lent"] += lent
    verdict.counts["shared: accepted"] += len(accepted)


def transactions(verdict: Verdict, lives: list[Life], what: str) -> None:
    for letter, outcome in (("C", "committed"), ("F", "aborted"), ("U", "unknown")):
        verdict.counts[f"{what}: {outcome}"] += sum(life.count(letter) for life in lives)


def take_overs(lives: list[Life]) -> int:
    """How often a partition went from one member to another."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for life in lives:
        for note in life.notes:
            if note.what == "A":
                found[life.group, note.words[0]].append((note.at, life.name))
    return sum(before[1] != after[1] for owners in map(sorted, found.values()) for before, after in pairwise(owners))


Span = tuple[float, float]


def longest_silence_s(lives: list[Life], what: str, stopped: list[Span]) -> float:
    """The longest time in which nobody wrote such a note, without those in which the whole machine stood still."""
    times = sorted(note.at for life in lives for note in life.notes if note.what == what)
    return max((_without(before, after, stopped) for before, after in pairwise(times)), default=0.0)


def _without(began: float, ended: float, spans: list[Span]) -> float:
    return ended - began - sum(max(min(ended, end) - max(began, first), 0.0) for first, end in spans)
