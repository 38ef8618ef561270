"""Disks that fill up, lose power, or hold a lot."""

from __future__ import annotations

import asyncio
import shutil
import signal
import zlib
from pathlib import Path

import pytest

import comet
from tests.robustness.machine import ext4_image, loop_mount, tmpfs
from tests.robustness.process import BrokerProcess, broker
from tests.waiting import until

RECORDS = 10_000_000
CHUNK = 100_000
FULL_MS = 2_000  # for which a full disk is tried again
CUTS = (200, 400, 600)  # acknowledged records


async def fill(address: str, topic: str, value: bytes) -> int:
    """Publishes until the disk is full; returns how many records were acknowledged."""
    written = 0
    async with comet.Producer(address, timeout_ms=FULL_MS) as producer:
        while True:
            try:
                await producer.publish(topic, value)
            except comet.DiskFull:
                return written
            written += 1


async def read_all(address: str, topic: str) -> list[bytes]:
    values: list[bytes] = []
    async with comet.Consumer(address, topic, start="earliest") as consumer:
        end = (await consumer.end_offsets())[0]
        async for batch in consumer.batches():
            values += [value or b"" for value in batch.values]
            if batch.next_offset >= end:
                return values
    return values


@pytest.mark.slow
async def test_a_full_disk_is_a_retriable_error_reads_go_on_and_it_heals(tmp_path: Path) -> None:
    value = bytes(range(256)) * 256
    with tmpfs(tmp_path / "small", "24m") as disk, broker(disk / "data") as process:
        filler = disk / "filler"
        async with comet.Admin(process.address) as admin:
            await admin.create_topic("t", flush="always", segment_bytes=1 << 20)
        async with comet.Producer(process.address, timeout_ms=6_000) as producer:
            written = await fill(process.address, "t", value)
            assert written > 50
            assert await read_all(process.address, "t") == [value] * written, "reads must go on"
            # Deleting is how an operator makes room; it must work on a full disk.
            async with comet.Admin(process.address) as admin:
                await admin.delete_records("t", 0, written // 2)
            receipt = await producer.publish("t", b"healed by deletion")
            assert receipt.offset >= written
            with filler.open("wb") as file:
                file.write(bytes(1 << 20))
            await fill(process.address, "t", value)
            waiting = await producer.send("t", b"patient")
            filler.unlink()
            await waiting
        process.kill()
        process.start()
        values = await read_all(process.address, "t")
        assert values[-1] == b"patient"
        assert not process.complaints(), process.said()


@pytest.mark.slow
async def test_a_power_cut_loses_nothing_acknowledged_with_flush_always(tmp_path: Path) -> None:
    """The broker is stopped and the image of its disk copied: the copy holds exactly what had reached the disk."""
    image = ext4_image(tmp_path / "disk.img", 64 << 20)
    acked: dict[int, bytes] = {}
    known: dict[int, dict[int, bytes]] = {}
    with loop_mount(image, tmp_path / "before") as disk, broker(disk / "data") as process:
        async with comet.Admin(process.address) as admin:
            await admin.create_topic("t", flush="always", segment_bytes=1 << 20)
        load = asyncio.create_task(_load(process.address, acked))
        for cut in CUTS:
            assert await until(lambda cut=cut: len(acked) >= cut, within_s=90, every_s=0.01)  # type: ignore[misc]
            process.signal(signal.SIGSTOP)
            known[cut] = dict(acked)
            shutil.copyfile(image, tmp_path / f"{cut}.img")
            process.signal(signal.SIGCONT)
        load.cancel()
        await asyncio.wait([load])
        process.kill()
    for cut, before in known.items():
        with loop_mount(tmp_path / f"{cut}.img", tmp_path / f"after-{cut}") as disk, broker(disk / "data") as process:
            values = await read_all(process.address, "t")
            lost = [offset for offset, value in before.items() if offset >= len(values) or values[offset] != value]
            assert not lost, f"{len(lost)} of {len(before)} acknowledged records are gone: {lost[:10]}"


async def _load(address: str, acked: dict[int, bytes]) -> None:
    async with comet.Producer(address) as producer:
        for number in range(1_000_000):
            value = b"%d" % number * 50
            receipt = await producer.publish("t", value)
            acked[receipt.offset] = value


@pytest.mark.slow
async def test_ten_million_records_survive_a_restart_and_are_read_back_exactly(tmp_path: Path) -> None:
    with broker(tmp_path / "data") as process:
        async with comet.Admin(process.address) as admin:
            await admin.create_topic("t", flush="os")
        written = await _write_many(process)
        process.kill()
        process.start()
        assert await _read_many(process) == written


def checksum(values: list[bytes], crc: int) -> int:
    return zlib.crc32(b"".join(values), crc)


async def _write_many(process: BrokerProcess) -> int:
    crc = 0
    async with comet.Producer(process.address) as producer:
        for first in range(0, RECORDS, CHUNK):
            values = [b"%020d" % number for number in range(first, first + CHUNK)]
            crc = checksum(values, crc)
            await producer.send_many("t", values)
        await producer.flush()
    return crc


async def _read_many(process: BrokerProcess) -> int:
    crc = count = 0
    async with comet.Consumer(process.address, "t", start="earliest") as consumer:
        async for batch in consumer.batches():
            assert batch.first_offset == count
            crc = checksum([value or b"" for value in batch.values], crc)
            count += len(batch)
            if count == RECORDS:
                return crc
    return crc
