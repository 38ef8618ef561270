"""A broker that answers strangers, and whose certificate is about to expire, as the dashboard shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, expect

from comet.security.certificates import Authority
from comet_broker.config import BrokerConfig
from comet_broker.server import Server
from tests.browser.axe import axe
from tests.browser.conftest import settled, shot, watched
from tests.robustness.gateway_process import GatewayProcess


@pytest_asyncio.fixture(loop_scope="package")
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Of a gateway before a broker that clients reach without certificates, and brokers with one that ends soon."""
    authority = Authority.create(tmp_path / "security", "comet")
    issued = authority.issue_broker(1, ["127.0.0.1"], days=6)
    config = BrokerConfig(
        data=tmp_path / "data",
        port=0,
        insecure=True,
        brokers_port=0,
        brokers_ca=authority.ca,
        brokers_cert=issued.cert,
        brokers_key=issued.key,
        drain_grace_ms=100,
    )
    async with Server(config) as server:
        gateway = GatewayProcess(tmp_path / "gateway", [server.address])
        gateway.launch()
        try:
            await gateway.ready()
            yield gateway.url
        finally:
            gateway.kill()


async def test_an_insecure_broker_and_its_certificate_are_red(browser: Browser, url: str) -> None:
    for scheme in ("light", "dark"):
        async with watched(browser, color_scheme=scheme) as found:
            page = await found.context.new_page()
            for path, name in (("/", "overview"), ("/brokers", "brokers")):
                await settled(page, url + path)
                for text in ("Broker 1 answers strangers beyond loopback", "brokers listener expires in 5 days"):
                    notice = page.locator('.strip td[data-tone="bad"]').filter(has_text=text)
                    await expect(notice).to_be_visible()
                await expect(page.get_by_text("comet security init").first).to_be_visible()
                await shot(page, f"insecure-{name}-{scheme}")
                await axe(page)
            await settled(page, url + "/")
            await expect(page.locator(".health")).to_have_text("Insecure")
