"""What the gateway knows of topics: how old it may be, and how often it asks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

import comet
from comet.entities import PartitionInfo, TopicDetails
from comet.settings.topic import TopicConfig
from comet_gateway.brokers import catalog as under_test
from comet_gateway.brokers.catalog import Catalog

QUOTES = TopicDetails("quotes", bytes(16), (PartitionInfo(0, 1, 0, (1,), (1,)),), TopicConfig(), created_us=0)


class FakeAdmin:
    """Answers what it is told to, once it may."""

    def __init__(self) -> None:
        self.answer: TopicDetails | comet.CometError = QUOTES
        self.may = asyncio.Event()
        self.may.set()
        self.asked = 0

    async def describe_topic(self, name: str) -> TopicDetails:
        self.asked += 1
        await self.may.wait()
        if isinstance(self.answer, comet.CometError):
            raise self.answer
        return self.answer


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def catalog(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setattr(under_test, "PATIENCE_S", 0.01)
    monkeypatch.setattr(under_test, "FRESH_S", 3_600.0)  # however long this process stands still
    monkeypatch.setattr(under_test, "STALE_S", 3_600.0)
    return Catalog(admin)  # type: ignore[arg-type]  # a fake


async def test_many_who_ask_cost_one_question(admin: FakeAdmin, catalog: Catalog) -> None:
    assert await asyncio.gather(*(catalog.topic("quotes") for _ in range(100))) == [QUOTES] * 100
    await catalog.topic("quotes")
    assert admin.asked == 1
    catalog.forget("quotes")
    await catalog.topic("quotes")
    assert admin.asked == 2


async def test_what_is_old_is_asked_for_anew(
    admin: FakeAdmin, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "FRESH_S", 0.0)
    await catalog.topic("quotes")
    admin.answer = again = replace(QUOTES, id=bytes([1]) * 16)
    assert await catalog.topic("quotes") == again
    admin.answer = comet.TopicNotFound("gone")
    for _ in range(2):
        with pytest.raises(comet.TopicNotFound):
            await catalog.topic("quotes")


@pytest.mark.parametrize("silent", [True, False])
async def test_while_nobody_answers_what_was_known_does(
    admin: FakeAdmin, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    monkeypatch.setattr(under_test, "FRESH_S", 0.0)
    await catalog.topic("quotes")
    admin.answer = comet.Unavailable("nobody is there")
    if silent:
        admin.may.clear()
    assert await catalog.topic("quotes") == QUOTES
    monkeypatch.setattr(under_test, "STALE_S", 0.0)
    admin.may.set()
    with pytest.raises(comet.Unavailable):
        await catalog.topic("quotes")


async def test_one_who_gives_up_takes_nothing_from_the_others(admin: FakeAdmin, catalog: Catalog) -> None:
    admin.may.clear()
    first, second = (asyncio.create_task(catalog.topic("quotes")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    admin.may.set()
    assert await second == QUOTES


async def test_a_name_that_is_none_is_not_asked_for(admin: FakeAdmin, catalog: Catalog) -> None:
    with pytest.raises(comet.InvalidArgument):
        await catalog.topic("a b")
    assert admin.asked == 0


@pytest.mark.parametrize("fails", [True, False])
async def test_what_is_changed_is_asked_for_anew(admin: FakeAdmin, catalog: Catalog, fails: bool) -> None:
    await catalog.topic("quotes")
    with suppress(comet.Timeout), catalog.changing("quotes"):
        admin.answer = again = replace(QUOTES, id=bytes([1]) * 16)
        if fails:
            raise comet.Timeout("it may have been done")
    assert await catalog.topic("quotes") == again


async def test_an_answer_from_before_a_change_is_not_kept(admin: FakeAdmin, catalog: Catalog) -> None:
    admin.may.clear()
    early = asyncio.create_task(catalog.topic("quotes"))
    await asyncio.sleep(0)
    catalog.forget("quotes")
    late = asyncio.create_task(catalog.topic("quotes"))
    await asyncio.sleep(0)
    assert admin.asked == 1
    admin.may.set()
    assert await early == await late == QUOTES
    await catalog.topic("quotes")
    assert admin.asked == 2, "what was asked for after the change is kept"
