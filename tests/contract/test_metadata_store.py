"""What every metadata store promises, tested on each of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from comet.errors import Closed
from comet_broker.metadata.store import (
    COMPARES_MAX,
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Compacted,
    Compare,
    Delete,
    Put,
    WatchEvent,
)
from tests.contract.metadata_world import LOCAL, World, contract

# ---- reading and writing


@contract()
async def test_an_empty_store_holds_nothing(world: World) -> None:
    assert await world.store.get("a") is None
    listing = await world.store.range("")
    assert listing.items == ()
    assert listing.revision == world.empty_revision


@contract()
async def test_a_put_is_read_back_with_its_revisions(world: World) -> None:
    first = await world.put("a", b"1")
    second = await world.put("a", b"2")
    assert second == first + 1
    item = await world.item("a")
    assert (item.value, item.create_revision, item.mod_revision, item.lease) == (b"2", first, second, 0)


@contract()
async def test_a_key_deleted_and_made_again_is_new(world: World) -> None:
    await world.put("a", b"1")
    await world.delete("a")
    assert await world.store.get("a") is None
    again = await world.put("a", b"2")
    item = await world.item("a")
    assert (item.create_revision, item.mod_revision) == (again, again)


@contract()
async def test_deleting_what_is_not_there_changes_nothing(world: World) -> None:
    before = await world.put("a")
    result = await world.store.transact([], [Delete("b")])
    assert result.applied
    assert result.revision == before


@contract()
async def test_an_empty_value_is_a_value(world: World) -> None:
    await world.put("a", b"")
    assert (await world.item("a")).value == b""


@contract()
async def test_a_value_may_be_big_and_hold_any_byte(world: World) -> None:
    value = bytes(range(256)) * 4000
    await world.put("big", value)
    assert (await world.item("big")).value == value


# ---- ranges


@contract()
async def test_a_range_takes_the_prefix_literally(world: World) -> None:
    keys = ["a", "a%", "a%b", "a_", "a_b", "ab", "a*", "b", "A", "a\\", "a'", 'a"', "a\0", "a\x7f"]
    for key in keys:
        await world.put(key)
    for prefix in ["a", "a%", "a_", "a*", "A", "a\\", "a'", "ab", "z", "", "a\0"]:
        assert await world.keys(prefix) == sorted(key for key in keys if key.startswith(prefix))


@contract()
async def test_a_range_is_in_the_order_of_utf8(world: World) -> None:
    # U+FFFF sorts before U+10000 in UTF-8 and as code points, but after it in UTF-16.
    keys = ["ä", "z", "日本", "\uffff", "\U00010000", "\U0010ffff", "\U0010ffff\U0010ffff", "é", "e\u0301"]
    for key in keys:
        await world.put(key)
    assert await world.keys("") == sorted(keys, key=lambda key: key.encode())
    assert await world.keys("\U0010ffff") == ["\U0010ffff", "\U0010ffff\U0010ffff"]
    assert await world.keys("e") == ["e\u0301"], "keys are not normalised"


@contract()
async def test_a_range_does_not_reach_into_the_neighbours(world: World) -> None:
    for key in ["/topics", "/topics/", "/topics/a", "/topics/b", "/topics0", "/topic"]:
        await world.put(key)
    assert await world.keys("/topics/") == ["/topics/", "/topics/a", "/topics/b"]


@contract()
async def test_a_range_tells_the_revision_it_stood_at(world: World) -> None:
    await world.put("a")
    last = await world.put("b")
    assert (await world.store.range("a")).revision == last


# ---- transactions


@contract()
async def test_create_if_absent_succeeds_once(world: World) -> None:
    assert await world.swap("a", 0, b"first")
    assert not await world.swap("a", 0, b"second")
    assert (await world.item("a")).value == b"first"


@contract()
async def test_a_compare_holds_for_exactly_one_revision(world: World) -> None:
    first = await world.put("a", b"1")
    second = await world.put("a", b"2")
    for revision in [0, first, second + 1, -1]:
        assert not await world.swap("a", revision, b"wrong")
    assert await world.swap("a", second, b"3")
    assert (await world.item("a")).value == b"3"


@contract()
async def test_a_compare_on_a_key_deleted_and_made_again_fails(world: World) -> None:
    first = await world.put("a", b"1")
    await world.delete("a")
    await world.put("a", b"1")
    assert not await world.swap("a", first, b"2")


@contract()
async def test_all_operations_apply_at_one_revision(world: World) -> None:
    before = await world.put("gone")
    result = await world.store.transact([], [Put("a", b"1"), Delete("gone"), Put("b", b"2")])
    assert result.applied
    assert result.revision == before + 1
    assert (await world.item("a")).mod_revision == (await world.item("b")).mod_revision == result.revision
    assert await world.store.get("gone") is None


@contract()
async def test_one_compare_that_fails_stops_every_operation(world: World) -> None:
    revision = await world.put("a", b"1")
    result = await world.store.transact(
        [Compare("a", revision), Compare("b", 0), Compare("c", 5)], [Put("b", b"2"), Delete("a")]
    )
    assert not result.applied
    assert result.revision == revision
    assert (await world.item("a")).value == b"1"
    assert await world.keys() == ["a"]


@contract()
async def test_a_transaction_without_operations_only_compares(world: World) -> None:
    revision = await world.put("a")
    assert (await world.store.transact([Compare("a", revision)], [])).applied
    assert not (await world.store.transact([Compare("a", 0)], [])).applied
    assert (await world.store.range("")).revision == revision


@contract()
async def test_of_many_that_swap_at_once_one_wins(world: World) -> None:
    revision = await world.put("a")
    swaps = [world.start(world.swap("a", revision, bytes([n]))) for n in range(50)]
    won = [n for n, swap in enumerate(swaps) if await swap]
    assert len(won) == 1
    assert (await world.item("a")).value == bytes(won)


@contract()
async def test_many_counting_by_compare_and_swap_lose_no_count(world: World) -> None:
    await world.put("count", b"0")

    async def count_up() -> None:
        for _ in range(10):
            while True:
                item = await world.item("count")
                if await world.swap("count", item.mod_revision, b"%d" % (int(item.value) + 1)):
                    break

    for task in [world.start(count_up()) for _ in range(8)]:
        await task
    assert (await world.item("count")).value == b"80"


@contract()
async def test_a_transaction_touches_a_key_once(world: World) -> None:
    twice: list[list[Put | Delete]] = [
        [Put("a", b"1"), Put("a", b"2")],
        [Put("a", b"1"), Delete("a")],
        [Delete("a"), Delete("a")],
    ]
    for operations in twice:
        with pytest.raises(ValueError, match="twice"):
            await world.store.transact([], operations)
    assert await world.keys() == []


@contract()
async def test_sizes_beyond_the_limits_are_refused(world: World) -> None:
    refused: list[list[Put] | list[Delete]] = [
        [Put("", b"")],
        [Put("k" * (KEY_BYTES_MAX + 1), b"")],
        [Put("ä" * (KEY_BYTES_MAX // 2) + "b", b"")],
        [Put("\ud800", b"")],
        [Put("a", bytes(TRANSACTION_BYTES_MAX))],
        [Delete(f"{n}") for n in range(OPERATIONS_MAX + 1)],
    ]
    for operations in refused:
        with pytest.raises(ValueError):  # noqa: PT011 - each has a text of its own
            await world.store.transact([], operations)
    with pytest.raises(ValueError, match="at most"):
        await world.store.transact([Compare(f"{n}", 0) for n in range(COMPARES_MAX + 1)], [Put("a", b"")])
    assert (await world.store.range("")).revision == world.empty_revision


@contract()
async def test_sizes_at_the_limits_are_taken(world: World) -> None:
    await world.put("k" * KEY_BYTES_MAX)
    await world.put("a", bytes(TRANSACTION_BYTES_MAX - 1))
    compares = [Compare(f"{n:0{KEY_BYTES_MAX}}", 0) for n in range(COMPARES_MAX)]
    await world.store.transact(compares, [Put(f"{n}", b"x") for n in range(OPERATIONS_MAX)])
    assert len(await world.keys()) == OPERATIONS_MAX + 2


# ---- watches


@contract()
async def test_a_watch_gives_what_happened_and_then_what_happens(world: World) -> None:
    first = await world.put("a", b"1")
    seen = world.collect("a", first, 3)
    second = await world.put("a", b"2")
    third = await world.delete("a")
    events = [event for events in await seen for event in events]
    assert [(event.revision, event.item.value if event.item else None) for event in events] == [
        (first, b"1"),
        (second, b"2"),
        (third, None),
    ]


@contract()
async def test_a_list_and_a_watch_from_the_next_revision_miss_nothing(world: World) -> None:
    writers = [world.start(world.put(f"k{n}", b"%d" % n)) for n in range(30)]
    await writers[10]
    listing = await world.store.range("")
    known = {item.key for item in listing.items}
    watch = world.store.watch("", listing.revision + 1)
    while len(known) < 30:
        for event in await anext(watch):
            assert event.key not in known, "a change came twice"
            known.add(event.key)


@contract()
async def test_all_changes_of_a_revision_come_together(world: World) -> None:
    await world.put("/a/gone")
    seen = world.collect("/a/", world.empty_revision + 2, 1)
    result = await world.store.transact([], [Put("/a/x", b"1"), Put("/b/y", b"2"), Delete("/a/gone")])
    ((put, gone),) = await seen
    assert put == WatchEvent("/a/x", await world.item("/a/x"), result.revision)
    assert gone == WatchEvent("/a/gone", None, result.revision)


@contract()
async def test_a_watch_sees_only_its_prefix_and_takes_it_literally(world: World) -> None:
    seen = world.collect("a%", world.empty_revision, 2)
    for key in ["a", "ab", "a%", "b", "a%b"]:
        await world.put(key)
    assert [event.key for events in await seen for event in events] == ["a%", "a%b"]


@contract()
async def test_a_watch_may_start_in_the_future(world: World) -> None:
    seen = world.collect("", world.empty_revision + 3, 1)
    for key in ["a", "b", "c", "d"]:
        await world.put(key)
    ((event,),) = await seen
    assert (event.key, event.revision) == ("c", world.empty_revision + 3)


@contract()
async def test_a_watch_from_before_the_beginning_makes_no_sense(world: World) -> None:
    with pytest.raises(ValueError, match="from 1 on"):
        world.store.watch("", 0)


@contract(history_revisions_max=3)
async def test_a_watch_into_the_forgotten_past_says_so(world: World) -> None:
    last = [await world.put(f"k{n}") for n in range(10)][-1]
    await world.forget_before(last - 2)
    with pytest.raises(Compacted) as caught:
        await anext(world.store.watch("", world.empty_revision + 1))
    assert caught.value.compact_revision == last - 2
    assert [events[0].revision for events in await world.collect("", last - 2, 3)] == [last - 2, last - 1, last]


@contract(history_revisions_max=3, kinds=LOCAL)  # between etcd and the watcher are buffers, bounded by bytes
async def test_a_watch_that_falls_too_far_behind_says_so(world: World) -> None:
    watch = world.store.watch("", world.empty_revision + 1)
    await world.put("a")
    assert (await anext(watch))[0].key == "a"
    for n in range(4):
        await world.put(f"k{n}")
    with pytest.raises(Compacted):
        await anext(watch)


@contract(history_revisions_max=3)
async def test_a_watch_that_keeps_up_is_never_cut_off(world: World) -> None:
    seen = world.collect("", world.empty_revision + 1, 20)
    for n in range(20):
        await world.put(f"k{n}")
        await asyncio.sleep(0)  # lets the watcher read
    assert [events[0].key for events in await seen] == [f"k{n}" for n in range(20)]


@contract()
async def test_many_watchers_see_the_same(world: World) -> None:
    seen = [world.collect("", world.empty_revision, 20) for _ in range(100)]
    for n in range(20):
        await world.put(f"k{n % 7}", b"%d" % n)
    first, *others = [await task for task in seen]
    assert len(first) == 20
    assert all(other == first for other in others)


@contract()
async def test_a_watch_can_be_given_up_and_taken_up_again(world: World) -> None:
    watch = world.store.watch("", world.empty_revision + 1)
    waiting = world.start(anext(watch))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    again = world.start(anext(watch))
    await asyncio.sleep(0)
    await world.put("a")
    assert (await again)[0].key == "a", "a cancelled wait has lost a change"


@contract()
async def test_closing_the_iterator_ends_it_also_for_who_waits(world: World) -> None:
    watch = world.store.watch("", world.empty_revision + 1)
    waiting = world.start(anext(watch))
    await asyncio.sleep(0)
    await watch.aclose()  # type: ignore[attr-defined]
    with pytest.raises(StopAsyncIteration):
        await watch.__anext__()
    done, _ = await asyncio.wait([waiting], timeout=60)
    assert done
    assert waiting.exception() is not None


@contract()
async def test_closing_the_store_ends_watches_and_refuses_calls(world: World) -> None:
    seen = asyncio.Event()

    async def count() -> int:
        number = 0
        async for _ in world.store.watch("", world.empty_revision):
            number += 1
            seen.set()
        return number

    counting = world.start(count())
    await world.put("a")
    await seen.wait()
    await world.store.close()
    assert await counting == 1
    for call in [world.store.get("a"), world.store.range(""), world.store.transact([], []), world.store.keep_alive(1)]:
        with pytest.raises(Closed):
            await call
    with pytest.raises(Closed):
        world.store.watch("", 1)
    await world.store.close()
