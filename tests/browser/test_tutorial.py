"""Pages of another address than the gateway's: the one that the tutorial ends with, and the example."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.async_api import Page, expect

import comet
from tests.browser.conftest import Watched, shot, stage_up
from tests.integration.gateway_tour import ROOT, up
from tests.integration.walkthroughs import files
from tests.robustness.gateway_process import GatewayProcess


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """As `python3 -m http.server` does it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_the_page_shows_prices_as_they_are_written(page: Page, context: Watched, tmp_path: Path) -> None:
    context.expected = ("favicon.ico", "404")
    (tmp_path / "page.html").write_text(files((ROOT / "docs/tutorial.md").read_text())["page.html"])
    with stage_up() as stage, served(tmp_path) as url:
        async with comet.Admin(stage.broker) as admin:
            await admin.create_topic("quotes")
        gateway = GatewayProcess(tmp_path / "gateway", [stage.broker], "--origins", url)
        gateway.launch()
        try:
            await gateway.ready()
            async with comet.Producer(stage.broker) as producer:
                await producer.publish("quotes", {"bid": 9.5, "ask": 9.7}, key="ACME")
                await page.goto(f"{url}/page.html?gateway={gateway.url}")
                await expect(page.locator("#ACME")).to_have_text("ACME: 9.5 / 9.7")
                await producer.publish("quotes", {"bid": 9.6, "ask": 9.8}, key="ACME")
                await expect(page.locator("#ACME")).to_have_text("ACME: 9.6 / 9.8")
                await producer.publish("quotes", {"bid": 1.08, "ask": 1.09}, key="EURUSD")
                await expect(page.locator("#EURUSD")).to_have_text("EURUSD: 1.08 / 1.09")
            await shot(page, "tutorial")
            await page.close()
        finally:
            gateway.kill()


async def test_the_example_shows_a_record_without_a_key(page: Page, context: Watched) -> None:
    context.expected = ("favicon.ico", "404")
    with served(ROOT / "examples") as url, up("--origins", url) as there:
        async with comet.Admin(there.broker) as admin, comet.Producer(there.broker) as producer:
            await admin.create_topic("orders")
            await page.goto(f"{url}/browser.html?topic=orders&gateway={there.gateway}")
            await expect(page.locator("#state")).to_have_text("live")
            await producer.publish("orders", "order 17")
            await expect(page.locator("#table")).to_have_text('(no key) "order 17"')
            await producer.publish("orders", {"item": "pen"}, key="a")
            await expect(page.locator("#a")).to_have_text('a {"item":"pen"}')
        await page.close()
