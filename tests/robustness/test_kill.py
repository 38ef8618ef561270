"""A broker that is killed, stopped or started twice: nothing acknowledged is lost, and errors say what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from subprocess import run as run_command
from sys import executable

import pytest

import comet
from tests.robustness import kill_cycles
from tests.robustness.process import STOP_S_MAX, BrokerProcess, broker


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("flush", "cycles"), [("interval", 20), ("os", 10), ("always", 10)])
async def test_killing_the_broker_under_load_loses_nothing_acknowledged(
    tmp_path: Path, flush: str, cycles: int
) -> None:
    report = await kill_cycles.run(tmp_path / "data", cycles, seed=cycles, flush=flush)
    assert not report.violations, "\n".join(report.violations[:10])
    assert report.cycles == cycles
    assert len(report.acked) > cycles, str(report)


@pytest.mark.slow
async def test_sigterm_under_load_loses_nothing_and_fails_nothing(tmp_path: Path) -> None:
    """The producer rides over an orderly restart: every record it sent is acknowledged, once."""
    with broker(tmp_path / "data") as process:
        async with comet.Admin(process.address) as admin:
            await admin.create_topic("t", flush="os")
        async with comet.Producer(process.address, timeout_ms=60_000) as producer:
            deliveries: list[comet.Delivery] = []
            for stop in range(3):
                for number in range(300):
                    deliveries.append(await producer.send("t", b"%d" % len(deliveries)))
                    if number % 10 == 0:
                        await deliveries[-1]  # so that it takes its time
                assert await asyncio.to_thread(process.terminate) == 0, f"stop {stop}:\n{process.said()}"
                process.launch()
                await asyncio.to_thread(process.wait_ready)
            receipts = [await delivery for delivery in deliveries]
        assert [receipt.offset for receipt in receipts] == list(range(900))
        async with comet.Consumer(process.address, "t", start="earliest") as consumer:
            values = [record.value async for record in until(consumer, 900)]
        assert values == [b"%d" % number for number in range(900)]
        assert process.terminate() == 0
        process.start()
        assert not process.complaints(), process.said()


async def until(consumer: comet.Consumer[bytes], end: int):  # type: ignore[no-untyped-def]
    async for record in consumer:
        yield record
        if record.offset == end - 1:
            return


def test_an_idle_broker_stops_at_once_on_sigterm(tmp_path: Path) -> None:
    with broker(tmp_path / "data") as process:
        assert process.terminate() == 0
        process.start()


def test_a_second_broker_on_the_same_folder_is_told_who_has_it(tmp_path: Path) -> None:
    with broker(tmp_path / "data") as process:
        second = run_command(
            [executable, "-m", "comet.cli", "broker", "--data", str(process.data), "--port", "0"],
            capture_output=True,
            text=True,
            timeout=STOP_S_MAX,
            check=False,
        )
        assert second.returncode == 1
        assert str(process.pid) in second.stderr
        assert "Traceback" not in second.stderr


def test_a_folder_is_free_again_after_its_owner_was_killed(tmp_path: Path) -> None:
    with broker(tmp_path / "data") as process:
        process.kill()
        again = BrokerProcess(process.data)
        again.start()
        assert again.terminate() == 0
        process.start()
