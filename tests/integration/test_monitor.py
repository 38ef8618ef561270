"""The broker's port for those who watch it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

import comet
from comet.cli._commands import app
from comet.errors import Unavailable
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import PartitionState, Versioned
from comet_broker.failures import Kind
from comet_broker.metrics import prometheus
from comet_broker.metrics.http import CONNECTIONS_MAX, HEAD_BYTES_MAX, METRICS_MAX
from comet_broker.server import Server
from tests.robustness.process import free_port
from tests.waiting import until

PATIENCE_S = 20.0


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    config = BrokerConfig(
        data=folder, port=0, metrics_port=free_port(), metrics_hosts=("events.example",), drain_grace_ms=100
    )
    async with (
        Server(config) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.monitor.port}") as client,
    ):
        yield server, client


async def figures(client: httpx.AsyncClient) -> dict[tuple[str, tuple[str, ...]], float]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {(one.name, tuple(one.labels.values())): one.value for family in families for one in family.samples}


async def test_it_shows_what_clients_do(tmp_path: Path) -> None:
    async with watched(tmp_path) as (server, client), comet.Admin(server.address) as admin:
        await admin.create_topic("quotes", partitions=2)
        async with comet.Producer(server.address) as producer:
            for number in range(10):
                await producer.publish("quotes", b"x" * 100, partition=number % 2)
        async with comet.GroupConsumer(server.address, "quotes", group="readers", start="earliest"):
            found = await figures(client)
            while ("comet_group_lag_records", ("readers", "quotes")) not in found:  # looked at every second
                found = await figures(client)
            assert found["comet_coordinated_members", ()] == 1
            assert found["comet_broker_streams", ()] >= 1
        assert found["comet_topic_appended_records_total", ("quotes",)] == 10
        assert found["comet_topic_partitions_led", ("quotes",)] == 2
        assert found["comet_topic_partitions_under_replicated", ("quotes",)] == 0
        assert found["comet_broker_ack_seconds_count", ()] == 10
        assert 0 < found["comet_broker_ack_seconds_sum", ()] < 10
        assert found["comet_broker_received_bytes_total", ()] > 1_000
        assert found["comet_broker_controller", ()] == 1
        assert found["comet_broker_disk_free_bytes", ()] > 0
        assert found["comet_broker_registered", ()] == 1
        assert found["comet_cluster_brokers", ()] == 1
        assert found["comet_cluster_partitions_offline", ()] == 0


async def test_a_scraper_may_ask_for_openmetrics(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, client):
        answer = await client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert answer.text.endswith("# EOF\n")


async def test_it_says_whether_it_is_well(tmp_path: Path) -> None:
    async with watched(tmp_path) as (server, client):
        assert (await client.get("/livez")).json() == {"status": "alive"}
        assert (await client.get("/readyz")).json() == {"status": "ready", "reasons": [], "degraded": []}
        server.broker.env.failures.note(Kind.GROUP, "engine", AssertionError("two owners"))
        answer = await client.get("/readyz")
        assert answer.json()["degraded"] == ["group engine has failed: AssertionError('two owners')"]
        assert answer.status_code == 200, "everything else is served"
        assert (await figures(client))["comet_broker_failed", ("group",)] == 1
        server.broker.env.tasks.failing["keep membership"] = "KeyError('lease')"
        answer = await client.get("/readyz")
        assert answer.status_code == 503 and "keep membership" in answer.json()["reasons"][0]
        server.broker.env.tasks.failing.clear()
        server.broker._drain.draining = True
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, ["it is about to stop"])
        assert (await client.get("/livez")).status_code == 200
        server.broker._drain.draining = False


async def test_it_is_ready_once_its_replicas_have_been_in_sync(tmp_path: Path) -> None:
    """So an orchestrator that restarts brokers one by one waits for replication. A later lag takes no broker away."""
    async with watched(tmp_path) as (server, client):
        state = server.broker.view.state
        behind = PartitionState(leader=2, epoch=3, replicas=(2, 1), in_sync={2: 7})
        other = PartitionState(leader=2, epoch=3, replicas=(2, 3), in_sync={2: 7}, target=(2, 1))
        state.partitions |= {("t", 0): Versioned(behind, 9, 9), ("t", 1): Versioned(other, 9, 9)}
        answer = await client.get("/readyz")
        assert answer.status_code == 503 and "not been in sync since its start: 1" in answer.json()["reasons"][0]
        earlier = msgspec.structs.replace(behind, in_sync={2: 7, 1: state.broker_epoch(1) - 1})
        state.partitions["t", 0] = Versioned(earlier, 10, 9)
        assert (await client.get("/readyz")).status_code == 503, "in sync before its restart"
        caught_up = msgspec.structs.replace(behind, in_sync={2: 7, 1: state.broker_epoch(1)})
        state.partitions["t", 0] = Versioned(caught_up, 11, 9)
        assert (await client.get("/readyz")).status_code == 200
        state.partitions["t", 0] = Versioned(behind, 12, 9)
        assert (await client.get("/readyz")).status_code == 200
        del state.partitions["t", 0], state.partitions["t", 1]


async def test_healthcheck_asks_it(tmp_path: Path) -> None:
    async def check(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, ["healthcheck", *words])

    async with watched(tmp_path) as (server, _):
        url = f"http://127.0.0.1:{server.monitor.port}"
        alive = await check(f"{url}/livez")
        assert (alive.exit_code, alive.stdout) == (0, '{"status": "alive"}\n')
        server.broker._drain.draining = True
        stopping = await check(f"{url}/readyz")
        assert stopping.exit_code == 1 and "it is about to stop" in stopping.stdout
        server.broker._drain.draining = False
    gone = await check(f"{url}/livez", "--timeout", "1")
    assert gone.exit_code == 4 and "no answer from" in gone.stderr
    for wrong in ("localhost:9095", "ftp://localhost/", "http://localhost:port/"):
        refused = await check(wrong)
        assert refused.exit_code == 2 and "http://127.0.0.1:9095/livez" in refused.stderr


async def test_it_takes_nothing_else(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, client):
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/metrics/../livez")).status_code in (200, 404)
        assert (await client.post("/metrics")).status_code == 405
        head = await client.head("/livez")
        assert (head.status_code, head.content) == (200, b"")


async def test_nonsense_and_dawdlers_hold_nothing_up(tmp_path: Path) -> None:
    async with watched(tmp_path) as (server, _):
        for nonsense in (b"\x00" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"x" * (HEAD_BYTES_MAX * 2), b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.monitor.port)
            writer.write(nonsense)
            if writer.can_write_eof():
                writer.write_eof()
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        await asyncio.gather(*server.monitor._answering)


async def test_silent_connections_take_no_place_from_probes(tmp_path: Path) -> None:
    async with watched(tmp_path) as (server, client):
        silent = [await asyncio.open_connection("127.0.0.1", server.monitor.port) for _ in range(CONNECTIONS_MAX + 8)]
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200
        assert await silent[0][0].read() == b"", "the oldest made room"
        for _, writer in silent:
            writer.close()


async def test_scrapes_that_hang_leave_places_to_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = threading.Event()
    monkeypatch.setattr(prometheus, "exposition", lambda *_: ("", b"" if made.wait(PATIENCE_S) else b"late"))
    async with watched(tmp_path) as (server, client):
        scrapes = [asyncio.create_task(client.get("/metrics")) for _ in range(METRICS_MAX)]
        try:
            assert await until(lambda: server.monitor._scrapes == METRICS_MAX, within_s=PATIENCE_S)
            assert (await client.get("/metrics")).status_code == 503
            assert (await client.get("/livez")).status_code == 200
        finally:
            made.set()
        assert {(await one).status_code for one in scrapes} == {200}
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/odd"])
async def test_a_name_that_is_not_the_brokers_is_refused(tmp_path: Path, path: str) -> None:
    async with watched(tmp_path) as (_, client):
        answer = await client.get(path, headers={"host": "evil.example"})
        assert answer.status_code == 421
        assert answer.json()["status"] == "'evil.example' is not a name of this broker; add it to metrics_hosts"
        for name in ("localhost:9095", "[::1]:9095", "events.example"):
            assert (await client.get(path, headers={"host": name})).status_code != 421


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    async with watched(tmp_path / "one") as (server, _):
        config = BrokerConfig(data=tmp_path / "two", port=0, metrics_port=server.monitor.port)
        with pytest.raises(Unavailable, match="for metrics"):
            async with Server(config):
                pass
        async with Server(BrokerConfig(data=tmp_path / "two", port=0)):
            pass  # it left nothing behind
