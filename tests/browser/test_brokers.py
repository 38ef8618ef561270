"""Brokers: the list, one of them, and giving away what it leads. On a cluster of their own, because they change it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, expect

import comet
from comet.cli._gateway_process import GatewayProcess
from comet.cli._local_cluster import LocalCluster
from tests import waiting
from tests.browser.axe import axe
from tests.browser.conftest import Stage, Watched, live, settled, shot, watched

PARTITIONS = 6
# How long all must be well before leadership goes back to those that are preferred: ten seconds outside of tests.
SETTINGS = {"rebalance_ms": "100ms", "metrics_port": "0"}

SLOW_MS = 60_000  # that a broker may take to be missed, and to be back
SOON_S = 60


class Cluster:
    def __init__(self, local: LocalCluster, url: str) -> None:
        self.local = local
        self.url = url

    def at(self, path: str) -> str:
        return self.url + path

    async def leaders(self) -> list[int]:
        """As all brokers have them: each hears of a change on its own, and a gateway asks any of them."""
        async with asyncio.timeout(SOON_S):
            while True:
                found = [await _leaders(broker.address) for broker in self.local.brokers]
                if all(one == found[0] for one in found):
                    return found[0]


async def _leaders(address: str) -> list[int]:
    """Of each partition its leader; 0 while it has none that may be replaced."""
    async with comet.Admin(address) as admin:
        info = await admin.describe_topic("trades")
    return [(one.leader or 0) if len(one.in_sync) == 3 else 0 for one in info.partitions]


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("brokers")
    local = LocalCluster(folder, 3, port=0, settings=SETTINGS)
    gateway: GatewayProcess | None = None
    try:
        await asyncio.to_thread(local.start)
        gateway = GatewayProcess(local.addresses, 0, folder)
        url = await asyncio.to_thread(gateway.start)
        assert url is not None
        async with comet.Admin(local.addresses) as admin:
            await admin.create_topic("trades", partitions=PARTITIONS, replicas=3)
            for index in range(PARTITIONS):  # all led by one, so that there is something to spread
                await admin.move_partition("trades", index, [1, 2, 3])
        found = Cluster(local, url)
        await until(found, {1})
        yield found
    finally:
        if gateway is not None:
            await asyncio.to_thread(gateway.child.stop)
        await asyncio.to_thread(local.stop)


async def until(cluster: Cluster, leaders: set[int]) -> None:
    """All leaders are these, and each leads something."""
    async with asyncio.timeout(SOON_S):
        while set(await cluster.leaders()) != leaders:
            pass


async def led(cluster: Cluster, index: int, broker: int) -> None:
    """That partition has that leader, from now on."""
    others = [other for other in (1, 2, 3) if other != broker]
    async with asyncio.timeout(SOON_S), comet.Admin(cluster.local.addresses) as admin:
        await admin.move_partition("trades", index, [broker, *others])
        while (await cluster.leaders())[index] != broker:
            pass


def row(page: Page, key: str) -> Locator:
    return page.locator(f'tr[data-key="{key}"]')


async def test_brokers_are_there_before_any_script(browser: Browser, stage: Stage) -> None:
    async with watched(browser, java_script_enabled=False) as found:
        page = await found.context.new_page()
        await page.goto(stage.at("/brokers"))
        await expect(page.get_by_text("1 broker, all up")).to_be_visible()
        await expect(row(page, "1")).to_contain_text("controller")
        await page.get_by_role("link", name="1", exact=True).click()
        await expect(page.get_by_role("heading", name="Broker 1")).to_be_visible()
        await expect(row(page, "quotes/0")).to_contain_text("leader")


async def test_a_broker_that_is_not_there(page: Page, context: Watched, stage: Stage) -> None:
    context.expected = ("404",)
    await page.goto(stage.at("/brokers/77"))
    await expect(page.get_by_text("Broker '77' does not exist; known brokers: 1")).to_be_visible()


async def test_a_drain_is_followed_though_not_every_broker_has_heard_of_it(page: Page, stage: Stage) -> None:
    """The gateway asks any broker; that one may not know yet what another one has decided."""
    drain = {"leading": 3, "staying": 0, "draining": True, "partitions": []}
    said = [{"draining": False, "leading": 3}, {"draining": True, "leading": 2}, {"draining": True, "leading": 0}]
    await page.route("**/v1/brokers/1/drain*", lambda route: route.fulfill(json=drain))
    await page.route("**/v1/brokers/1", lambda route: route.fulfill(json=said.pop(0) if said[1:] else said[0]))
    await settled(page, stage.at("/brokers/1"))
    await page.get_by_role("button", name="Drain").click()
    await page.get_by_label("Type broker 1 to confirm").fill("broker 1")
    await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    await expect(page.get_by_text("Broker 1 leads no partitions and can be stopped.")).to_be_visible()


async def test_who_begins_a_job_is_told_how_it_ended_however_fast(page: Page, stage: Stage) -> None:
    over = {"state": "done", "changes": 2, "decided": 2, "led": 2, "error": "", "brokers": [], "partitions": []}
    for path in ("**/v1/leaders", "**/v1/leaders/move*"):
        await page.route(path, lambda route: route.fulfill(json=over))
    await settled(page, stage.at("/brokers"))
    await page.get_by_role("button", name="Spread leaders").click()
    await page.get_by_role("dialog").get_by_role("button", name="Spread leaders").click()
    await expect(page.get_by_text("All 2 partitions moved.")).to_be_visible()


async def test_what_is_chosen_before_the_page_is_all_there_is_chosen(page: Page, stage: Stage) -> None:
    chosen = asyncio.Event()

    async def late(route: Route) -> None:
        await chosen.wait()
        await route.continue_()

    await page.route("**/js/pages/broker.js", late)
    await page.goto(stage.at("/brokers/1"))
    await expect(page.locator("html")).to_have_attribute("data-live", "live")
    await row(page, "quotes/1").get_by_role("checkbox").check()
    chosen.set()
    await live(page)
    await expect(page.get_by_text("1 selected")).to_be_visible()


async def test_leaders_are_spread_after_a_look_at_what_changes(page: Page, cluster: Cluster) -> None:
    await until(cluster, {1})
    await page.goto(cluster.at("/brokers"))
    await expect(page.get_by_text("leaders are spread unevenly: 0 to 6 per broker")).to_be_visible()
    await expect(row(page, "1")).to_contain_text("300 %")
    await shot(page, "brokers-light")
    await page.get_by_role("button", name="Spread leaders").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_text("1: 6 → 2, 2: 0 → 2, 3: 0 → 2")).to_be_visible()
    await shot(page, "brokers-spread")
    await dialog.get_by_role("button", name="Spread leaders").click()
    await expect(page.get_by_text("All 4 partitions moved.")).to_be_visible()
    async with asyncio.timeout(SOON_S):
        while sorted(await cluster.leaders()) != [1, 1, 2, 2, 3, 3]:
            pass
    await expect(page.get_by_text("leaders are spread evenly")).to_be_visible()
    await page.get_by_role("button", name="Spread leaders").click()
    await expect(dialog.get_by_text("none", exact=True)).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)


async def test_a_broker_is_drained_by_keys_alone_and_may_lead_again(page: Page, cluster: Cluster) -> None:
    await led(cluster, 0, 2)
    await settled(page, cluster.at("/brokers/2"))
    await page.get_by_role("button", name="Drain").press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_text(re.compile("to broker"))).to_be_visible()
    go = dialog.get_by_role("button", name="Drain", exact=True)
    await expect(go).to_be_disabled()
    await expect(dialog.get_by_label("Type broker 2 to confirm")).to_be_focused()
    await page.keyboard.type("broker 2")
    await expect(go).to_be_enabled()
    await shot(page, "broker-drain")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Broker 2 leads no partitions and can be stopped.")).to_be_visible()
    await expect(page.locator(".status")).to_have_text("drained")
    async with asyncio.timeout(SOON_S):
        while {0, 2} & set(await cluster.leaders()):
            pass
    await page.get_by_role("button", name="Undo drain").click()
    await dialog.get_by_role("button", name="Undo drain").click()
    await expect(page.get_by_text("Broker 2 may lead again.")).to_be_visible()
    await expect(page.locator(".status")).not_to_have_text("drained")
    await led(cluster, 0, 2)


async def test_leadership_of_some_partitions_is_moved(page: Page, cluster: Cluster) -> None:
    first = 1
    await led(cluster, first, 1)
    await settled(page, cluster.at("/brokers/1"))
    await row(page, f"trades/{first}").get_by_role("checkbox").check()
    await expect(page.get_by_text("1 selected")).to_be_visible()
    await page.get_by_role("button", name="Move leadership").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_text(re.compile(rf"trades/{first}: 1 → [23]"))).to_be_visible()
    await dialog.get_by_role("button", name="Move leadership").click()
    await expect(page.get_by_text("Moving leadership of 1 partition.")).to_be_visible()
    async with asyncio.timeout(SOON_S):
        while (await cluster.leaders())[first] in (0, 1):
            pass
    await shot(page, "broker-light")


async def test_a_job_is_seen_by_whoever_comes_and_is_stopped(page: Page, cluster: Cluster) -> None:
    """The API refuses a second one; stopping one that is over changes nothing."""
    async with httpx.AsyncClient(base_url=cluster.url, timeout=SOON_S) as http:
        # That of the test before may be at its last step.
        assert await waiting.until(
            lambda: httpx.get(f"{cluster.url}/v1/leaders", timeout=SOON_S).json()["state"] != "running", within_s=SOON_S
        )
        job = (await http.get("/v1/leaders")).json()
        assert job["state"] in ("done", "idle")
        assert (await http.post("/v1/leaders/stop")).json() == job
        unknown = await http.post("/v1/leaders/move", json={"partitions": [{"topic": "trades", "partition": 99}]})
        assert unknown.status_code == 404
        assert unknown.json()["code"] == "PARTITION_NOT_FOUND"
    running = (
        '{"state": "running", "changes": 40, "decided": 20, "led": 12, "error": "", "brokers": [], "partitions": []}'
    )
    stopped = running.replace("running", "stopped")
    said = running

    async def job_is(route: Route) -> None:
        await route.fulfill(body=said, content_type="application/json")

    async def stop(route: Route) -> None:
        nonlocal said
        said = stopped
        await job_is(route)

    await page.route("**/v1/leaders", job_is)
    await page.route("**/v1/leaders/stop", stop)
    await page.goto(cluster.at("/brokers"))
    await expect(page.get_by_text("12 of 40 partitions moved")).to_be_visible()
    await shot(page, "brokers-job")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Stopped: 12 of 40 partitions moved.")).to_be_visible()


async def test_brokers_fit_a_narrow_screen_in_the_dark(browser: Browser, cluster: Cluster) -> None:
    for path, name in (("/brokers", "brokers"), ("/brokers/1", "broker")):
        async with watched(browser, color_scheme="dark", viewport={"width": 360, "height": 740}) as found:
            page = await found.context.new_page()
            await settled(page, cluster.at(path))
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await shot(page, f"{name}-dark-360")
            await axe(page)


async def test_a_broker_that_goes_is_said_to_be_down_and_comes_back(page: Page, cluster: Cluster) -> None:
    """The last one: it costs the cluster a broker."""
    await page.goto(cluster.at("/brokers"))
    await expect(page.get_by_text("3 brokers, all up")).to_be_visible()
    victim = cluster.local.brokers[2]
    victim.kill()
    await expect(row(page, "3")).to_contain_text("down since", timeout=SLOW_MS)
    await expect(page.get_by_text("2 of 3 brokers up")).to_be_visible()
    await shot(page, "brokers-down")
    victim.start()
    await expect(page.get_by_text("3 brokers, all up")).to_be_visible(timeout=SLOW_MS)


async def test_a_partition_is_moved_to_other_brokers(page: Page, context: Watched, cluster: Cluster) -> None:
    context.expected = ("404",)  # of a broker that does not exist
    async with comet.Admin(cluster.local.addresses) as admin:
        await admin.create_topic("moved", partitions=2, replicas=1)
        await admin.move_partition("moved", 1, [1])
        async with comet.Producer(cluster.local.addresses) as producer:
            await producer.send("moved", b"x" * 1000, partition=1)
            await producer.flush()
        await settled(page, f"{cluster.url}/topics/moved")
        await page.get_by_role("checkbox", name="Select 1", exact=True).check()
        await page.get_by_role("button", name="Move to brokers").click()
        dialog = page.get_by_role("dialog", name="Move partition 1 of moved")
        await expect(dialog).to_contain_text("The cluster has: 1")
        go = dialog.get_by_role("button", name="Move partition")
        await expect(dialog.locator("dl")).to_contain_text("Replicasunchanged")
        await expect(go).to_be_disabled()
        await dialog.get_by_label("Brokers").fill("9")
        await expect(dialog.get_by_role("alert")).to_contain_text("9")
        await expect(go).to_be_disabled()
        await dialog.get_by_label("Brokers").fill("3, 2")
        await expect(dialog.locator("dl")).to_contain_text("1 → 3, 2")
        await expect(dialog.locator("dl")).to_contain_text("to 2 brokers")
        await expect(dialog.locator("dl")).to_contain_text("the copy on broker 1")
        await axe(page)
        await go.click()
        await expect(page.get_by_role("status").filter(has_text="being copied to broker")).to_be_visible()
        async with asyncio.timeout(SOON_S):
            while set((await admin.describe_topic("moved")).partitions[1].replicas) != {2, 3}:
                pass
        await admin.delete_topic("moved")
