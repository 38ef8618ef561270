"""Delayed retries while their handler and their broker are killed: each record gets its rounds, each stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

import comet
from comet.processes.child import Child, python_module
from tests.robustness.process import broker
from tests.robustness.retrying_member import DELAYS, RETRIES, TOPIC
from tests.waiting import pace, until

pytestmark = pytest.mark.slow

RECORDS = 400
KILLS = 3


@contextmanager
def member(address: str, notes: Path) -> Iterator[Child]:
    child = Child(
        "member", python_module("tests.robustness.retrying_member", address, str(notes)), log=notes.with_suffix(".log")
    )
    child.start()
    try:
        yield child
    finally:
        child.kill()


async def test_every_record_gets_all_its_rounds_over_kills(tmp_path: Path) -> None:
    notes, random = tmp_path / "notes", Random(7)
    with broker(tmp_path / "data") as one:
        async with comet.Admin(one.address) as admin:
            for topic in (TOPIC, RETRIES, "failed"):
                await admin.create_topic(topic, partitions=2)
        async with comet.Producer(one.address, acks="all") as producer:
            await (await producer.send_many(TOPIC, [b"%d" % n for n in range(RECORDS)]))
        for turn in range(KILLS):
            with member(one.address, notes):
                await pace(1 + random.random() * 2)
                if turn == KILLS // 2:
                    one.kill()
            if turn == KILLS // 2:
                one.start()
        with member(one.address, notes):
            assert await until(lambda: len(set(lines(notes))) == RECORDS, within_s=90)
        assert set(lines(notes)) == {str(n) for n in range(RECORDS)}
        rounds = Counter[tuple[bytes, bytes, bytes]]()
        async with comet.Reader(one.address) as reader:
            for partition in range(2):
                async for part in reader.read(RETRIES, partition):
                    assert isinstance(part, comet.RecordBatch), part
                    for record in part.records():
                        about = {name.removeprefix("comet-retry-"): value for name, value in record.headers}
                        rounds[about["partition"], about["offset"], about["round"]] += 1
        assert len(rounds) == RECORDS * len(DELAYS)
        assert [name for name, times in rounds.items() if times > 1] == []
        assert not one.complaints()
        print(f"{RECORDS} records, {len(lines(notes)) - RECORDS} of them handled again")


def lines(notes: Path) -> list[str]:
    return notes.read_text().split("\n")[:-1] if notes.exists() else []
