"""Pages that somebody looks at: made once a tick for all tabs, told to each by what it has. On virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from comet.errors import TopicNotFound
from comet_gateway.dashboard.live_pages import RETRY_S, LivePages, Watcher
from comet_gateway.http.problems import Problem
from comet_testing.simulation import loop as sim
from comet_web.document import Cell, Document
from comet_web.page_request import VIEWER, PageRequest
from comet_web.pages import Page
from tests.integration.live_gateway import SERVER
from tests.property.test_web_delta import apply


def page(name: str = "topics", **settings: Any) -> Page:
    return Page(name, f"/{name}", "", "nothing", lambda _, asked: Document(asked.now_us, ""), **settings)


class World:
    """Pages that count how often they were made, and say so."""

    def __init__(self, pages_max: int = 10) -> None:
        self.made: Counter[str] = Counter()
        self.error: Exception | None = None
        self.outdated_at = -1.0
        self.aligned = 0
        self.pages = LivePages(self.load, self, pages_max)

    def next(self, when: float) -> float:
        self.aligned += 1
        return when

    async def load(self, page: Page, asked: PageRequest) -> Document:
        await asyncio.sleep(0.01)
        self.made[asked.link()] += 1
        if self.error is not None:
            raise self.error
        number = self.made[asked.link()]
        return Document(
            number, "", {"n": Cell(str(number)), "principal": Cell(asked.principal or "nobody"), "same": Cell("same")}
        )


Scenario = Callable[[World], Coroutine[Any, Any, None]]


def on_virtual_time(scenario: Scenario) -> Callable[[], None]:
    def test() -> None:
        async def main(loop: sim.SimLoop) -> None:
            await scenario(World())
            assert not loop.unhandled

        sim.run(main)

    test.__doc__ = scenario.__doc__
    return test


def said(watcher: Watcher) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(b"".join(watcher.next()))
    SERVER.validate(frame)
    return frame


async def heard(watcher: Watcher) -> dict[str, Any]:
    await watcher.changed()
    return said(watcher)


@on_virtual_time
async def test_a_tab_gets_the_page_and_then_what_changes(world: World) -> None:
    watcher, leave = world.pages.watch("7", page(interval_s=2), PageRequest(path="/topics"))
    loop = asyncio.get_running_loop()
    first = await heard(watcher)
    assert (first["type"], first["id"], first["seq"], first["interval_s"]) == ("page", "7", 0, 2)
    assert first["document"]["fields"] == {"n": "1", "principal": "nobody", "same": "same"}
    for number in (1, 2, 3):
        delta = {"time_us": number + 1, "fields": {"n": str(number + 1)}}
        assert await heard(watcher) == {"type": "delta", "id": "7", "seq": number, "delta": delta}
        assert loop.time() == pytest.approx(2 * number + 0.01)
    leave()


@on_virtual_time
async def test_a_hundred_tabs_are_one_page_made_and_encoded_once(world: World) -> None:
    tabs = [
        world.pages.watch(str(number + 1), page(), PageRequest(path="/topics", principal=f"w{number}"))
        for number in range(100)
    ]
    for watcher, _ in tabs:
        await watcher.changed()
    assert world.made == {"/topics": 1}
    assert len({id(watcher.next()[1]) for watcher, _ in tabs}) == 1
    await asyncio.sleep(1.1)
    assert world.made == {"/topics": 2}
    assert len({id(watcher.next()[1]) for watcher, _ in tabs}) == 1
    for _, leave in tabs:
        leave()


@on_virtual_time
async def test_other_queries_and_roles_are_other_pages(world: World) -> None:
    for number, asked in enumerate(
        [
            PageRequest(path="/topics", query={"sort": "-in"}),
            PageRequest(path="/topics", query={"sort": "in"}),
            PageRequest(path="/topics", role=VIEWER),
            PageRequest(path="/topics"),
            PageRequest(path="/topics", query={"page": ""}),
        ]
    ):
        world.pages.watch(str(number + 1), page(), asked)
    assert world.pages.count == 4
    world.pages.close()


@on_virtual_time
async def test_what_shows_who_looks_is_made_for_each_of_them(world: World) -> None:
    anna, _ = world.pages.watch("1", page(personal=True), PageRequest(path="/topics", principal="anna"))
    ben, _ = world.pages.watch("1", page(personal=True), PageRequest(path="/topics", principal="ben"))
    assert (await heard(anna))["document"]["fields"]["principal"] == "anna"
    assert (await heard(ben))["document"]["fields"]["principal"] == "ben"
    world.pages.close()


@on_virtual_time
async def test_who_does_not_read_is_told_later_what_changed_since_and_how_much_it_missed(world: World) -> None:
    slow, _ = world.pages.watch("1", page(), PageRequest(path="/topics"))
    quick, _ = world.pages.watch("2", page(), PageRequest(path="/topics"))
    before = (await heard(slow))["document"]
    await heard(quick)
    for _ in range(4):
        await heard(quick)
    late = said(slow)
    assert (late["seq"], late["skipped"]) == (1, 3)
    assert apply(before, late["delta"]) == {**before, "time_us": 5, "fields": {**before["fields"], "n": "5"}}
    again = await heard(slow)
    assert again["seq"] == 2
    assert "skipped" not in again
    world.pages.close()


@on_virtual_time
async def test_who_comes_later_is_shown_a_new_version_at_once(world: World) -> None:
    first, _ = world.pages.watch("1", page(interval_s=10), PageRequest(path="/topics"))
    await heard(first)
    await asyncio.sleep(0.1)
    soon, _ = world.pages.watch("2", page(interval_s=10), PageRequest(path="/topics"))
    assert (await heard(soon))["document"]["fields"]["n"] == "1"  # that is new enough
    world.outdated_at = asyncio.get_running_loop().time()
    after_an_act, _ = world.pages.watch("3", page(interval_s=10), PageRequest(path="/topics"))
    assert (await heard(after_an_act))["document"]["fields"]["n"] == "2"
    await asyncio.sleep(5)
    later, _ = world.pages.watch("4", page(interval_s=10), PageRequest(path="/topics"))
    assert (await heard(later))["document"]["fields"]["n"] == "3"
    assert asyncio.get_running_loop().time() < 6
    world.pages.close()


@on_virtual_time
async def test_nothing_is_made_when_nobody_looks(world: World) -> None:
    tabs = [world.pages.watch(str(number), page(), PageRequest(path="/topics")) for number in (1, 2)]
    await asyncio.sleep(3.5)
    assert world.made["/topics"] == 4
    for _, leave in tabs:
        leave()
    await asyncio.sleep(60)
    assert world.made["/topics"] == 4
    assert world.pages.count == 0


@on_virtual_time
async def test_a_page_that_fails_says_why_and_goes_on_trying(world: World) -> None:
    watcher, _ = world.pages.watch("1", page(), PageRequest(path="/topics"))
    await heard(watcher)
    world.error = TopicNotFound("topic 'quotes' does not exist")
    lost = await heard(watcher)
    assert (lost["type"], lost["of"], lost["problem"]["code"]) == ("error", "subscribe", "TOPIC_NOT_FOUND")
    assert "seq" not in lost
    assert (await heard(watcher))["problem"]["status"] == 404
    world.error = None
    back = await heard(watcher)
    assert (back["seq"], back["delta"]["fields"]) == (1, {"n": "4"})
    world.pages.close()


@on_virtual_time
async def test_a_bug_in_a_view_is_a_problem_of_that_page(world: World) -> None:
    world.error = ValueError("a secret")
    watcher, _ = world.pages.watch("1", page(), PageRequest(path="/topics"))
    told = await heard(watcher)
    assert told["problem"]["code"] == "INTERNAL"
    assert "secret" not in json.dumps(told)
    world.pages.close()


@on_virtual_time
async def test_a_page_that_is_made_once_is_tried_again_until_it_is_and_anew_for_each_tab(world: World) -> None:
    world.error = Problem("UNAVAILABLE", "nobody answers")
    watcher, leave = world.pages.watch("1", page(interval_s=0), PageRequest(path="/topics"))
    assert "problem" in await heard(watcher)
    world.error = None
    shown = await heard(watcher)
    assert shown["document"]["fields"]["n"] == "2"
    assert asyncio.get_running_loop().time() == pytest.approx(RETRY_S + 0.01)
    await asyncio.sleep(100)
    assert world.made["/topics"] == 2
    other, leave_other = world.pages.watch("2", page(interval_s=0), PageRequest(path="/topics"))
    assert (await heard(other))["document"]["fields"]["n"] == "3"
    leave()
    leave_other()


@on_virtual_time
async def test_a_page_that_is_made_more_often_than_facts_are_new_does_not_wait_for_them(world: World) -> None:
    world.pages.watch("1", page(interval_s=0.25), PageRequest(path="/quotes"))
    await asyncio.sleep(10)
    assert 38 <= world.made["/quotes"] <= 41
    assert not world.aligned
    world.pages.close()


@on_virtual_time
async def test_there_is_a_limit_to_how_many_are_made(world: World) -> None:
    for number in range(10):
        world.pages.watch("1", page(), PageRequest(path="/topics", query={"page": str(number)}))
    with pytest.raises(Problem, match="the limit"):
        world.pages.watch("1", page(), PageRequest(path="/topics"))
    world.pages.watch("1", page(), PageRequest(path="/topics", query={"page": "3"}))  # that one is made anyway
    world.pages.close()
