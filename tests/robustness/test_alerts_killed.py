"""Of two gateways the one that evaluates alerts is killed in the middle of a delivery; the command line looks on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import comet.testing
from tests.integration.alert_targets import OK, receiver
from tests.robustness.gateway_process import GatewayProcess
from tests.waiting import until, until_answered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PATIENCE_S = 60
NETWORKS = ("--alert-networks", "127.0.0.0/8")


@asynccontextmanager
async def gateway(folder: Path, broker: str) -> AsyncIterator[GatewayProcess]:
    one = GatewayProcess(folder, [broker], *NETWORKS)
    one.launch()
    try:
        await one.ready()
        yield one
        assert not one.complaints()
    finally:
        one.kill()


async def comet_alert(one: GatewayProcess, *words: str, code: int = 0) -> str:
    """The output of the command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "comet.cli", "alert", *words, "--gateway", one.url, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    assert process.returncode == code, (words, out, err)
    return (out or err).decode()


async def listed(one: GatewayProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await comet_alert(one, "list", "--json"))["items"]
    return found


async def test_a_killed_gateway_is_replaced_and_its_notice_comes_again(tmp_path: Path) -> None:
    async with (
        comet.testing.broker({"quiet": 1}) as broker,
        receiver(lambda _: answer) as hook,
        gateway(tmp_path / "first", broker.address) as first,
    ):
        answer: bytes | None = None  # the target hears, and is silent
        created = await comet_alert(
            first, "create", "silent", "stale", "--topic", "quiet", "--threshold", "0", "--webhook", hook.url
        )
        id_ = created.split()[-1]
        assert await until(lambda: bool(hook.calls), within_s=PATIENCE_S)
        async with gateway(tmp_path / "second", broker.address) as second:

            async def knows() -> bool:
                return [one["state"] for one in await listed(second)] == ["firing"]

            assert await until_answered(knows, within_s=PATIENCE_S)
            answer = OK
            first.kill()
            before = len(hook.calls)
            assert await until(lambda: len(hook.calls) > before, within_s=PATIENCE_S)
            assert {call.headers["webhook-id"] for call in hook.calls} == {f"{id_}-1-firing"}
            assert "firing" in await comet_alert(second, "list")
            assert "muted for 1h" in await comet_alert(second, "mute", "silent", "--for", "1h")
            assert "delivered" in await comet_alert(second, "test", id_)
            answer = b"HTTP/1.1 410 Gone\r\n\r\n"
            assert "status 410" in await comet_alert(second, "test", id_, code=1)
            assert "no alert 'x'" in await comet_alert(second, "delete", "x", "--yes", code=2)
            assert "needs it" in await comet_alert(second, "create", "x", "lag", "--threshold", "1", code=2)
            await comet_alert(second, "delete", "silent", "--yes")
            assert await listed(second) == []
