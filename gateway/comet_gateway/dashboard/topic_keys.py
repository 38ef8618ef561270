"""The page of a topic's keys: one page of the list, bounded by keys and by bytes, and the revisions of one key.

An update reads again what may have changed: once the log of a partition has, and after READ_AGAIN_S at the latest. The
first content of the page says why keys cannot be read; an update fails, so that the tab keeps its rows, as outdated.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import comet
from comet.encryption.envelope import key_id_of
from comet.entities import PartitionInfo
from comet.errors import CometError
from comet.records import partition_for
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.problems import Problem
from comet_web.facts import RecordPreview, TopicDetail, TopicKeys
from comet_web.page_request import PageRequest
from comet_web.views.topic_keys import KEY_BYTES_MAX

KEYS_MAX: Final = 50  # of one page
PAGE_BYTES: Final = 4 << 20  # of keys and values that are read for one page
FIRST_KEYS: Final = 8  # read first, to learn how long values are
SHOWN_BYTES: Final = 1_024  # of a value, in a list
WAIT_S: Final = 5.0  # for the leaders
READ_AGAIN_S: Final = 10.0
PAGES_MAX: Final = 100  # kept, of all topics
NAMED_MAX: Final = 10  # partitions without a leader, by number

Entry = comet.KVEntry[bytes]


class KeySelection(NamedTuple):
    """The parameters of the page."""

    prefix: bytes
    after: bytes | None
    key: bytes | None
    stale: bool


class KeysRead(NamedTuple):
    keys: tuple[RecordPreview, ...] = ()
    after: bytes = b""
    history: tuple[RecordPreview, ...] = ()
    expired: bool = False  # the last value of the key


class ReadPages:
    """Pages as they were read last: a page that does not change costs its brokers nothing. Kept by the sources."""

    def __init__(self, _sources: Sources) -> None:
        self._known: dict[tuple[str, KeySelection], tuple[Hashable, float, KeysRead]] = {}

    def get(self, topic: str, selection: KeySelection, state: Hashable) -> KeysRead | None:
        """A page that was read in this state of the logs, not long ago."""
        known = self._known.get((topic, selection))
        if known is None or known[0] != state or known[1] < asyncio.get_running_loop().time():
            return None
        return known[2]

    def put(self, topic: str, selection: KeySelection, state: Hashable, read: KeysRead) -> None:
        self._known.pop((topic, selection), None)
        while len(self._known) >= PAGES_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic, selection] = (state, asyncio.get_running_loop().time() + READ_AGAIN_S, read)


async def load(sources: Sources, request: PageRequest, detail: TopicDetail) -> TopicKeys:
    """Raises Problem and CometError, but not for the first content of the page."""
    key: bytes | None = None
    try:
        selection = selected(request.query)
        key = selection.key
        read = await _page(sources, request, detail, selection)
    except TimeoutError:
        why = (
            f"The leaders did not answer within {WAIT_S:.0f} s. Before it reads the first key of a partition, a broker"
            " makes a table of it, which takes a while for a large one. The page tries again by itself."
        )
        problem = Problem("UNAVAILABLE", why)
    except (Problem, CometError) as error:
        problem = error if isinstance(error, Problem) else Problem.of(error)
    else:
        return TopicKeys(detail, read.keys, read.after, key, read.history, read.expired)
    if not request.first:
        raise problem
    return TopicKeys(detail, key=key, problem=problem.detail)


async def _page(sources: Sources, request: PageRequest, detail: TopicDetail, selection: KeySelection) -> KeysRead:
    topic, partitions = request.params["topic"], detail.partitions
    _require_leaders(partitions, selection)
    state = tuple((one.leader, one.leader_epoch, one.log_start, one.high_watermark) for one in partitions)
    known = None if request.first else sources.part(ReadPages).get(topic, selection, state)
    if known is not None:
        return known
    history: Sequence[Entry] = ()
    last: Entry | None = None
    async with asyncio.timeout(WAIT_S), sources.backend.key_tables.of(topic) as kv:
        if selection.key is not None:
            history = await kv.history(selection.key, stale=selection.stale)
            last = await kv.get(selection.key, stale=selection.stale)
        entries, more = await _entries(kv, selection, len(partitions))
    after = entries[-1].key[: KEY_BYTES_MAX + 1] if more else b""
    expired = last is None and bool(history) and history[0].value is not None
    read = KeysRead(_previews(entries, detail), after, _previews(history, detail), expired)
    sources.part(ReadPages).put(topic, selection, state, read)
    return read


def selected(query: Mapping[str, str]) -> KeySelection:
    """Raises Problem."""
    key: bytes | None = _text(query, "key") or None
    if query.get("key_base64"):
        key = _decoded("key_base64", query["key_base64"], partial(b64decode, validate=True))
    after = _decoded("after", query["after"], bytes.fromhex) if query.get("after") else None
    return KeySelection(_text(query, "prefix"), after, key, query.get("stale") == "yes")


def _text(query: Mapping[str, str], name: str) -> bytes:
    return _short(name, query.get(name, "").encode(errors="replace"))


def _decoded(name: str, text: str, decode: Callable[[str], bytes]) -> bytes:
    try:
        return _short(name, decode(text))
    except ValueError:
        raise Problem("INVALID_ARGUMENT", f"{name} of this address is damaged: look the key up in the list") from None


def _short(name: str, data: bytes) -> bytes:
    if len(data) > KEY_BYTES_MAX:
        why = f"{name} has more than {KEY_BYTES_MAX} bytes, the limit of this page: use comet kv"
        raise Problem("INVALID_ARGUMENT", why)
    return data


def _require_leaders(partitions: Iterable[PartitionInfo], selection: KeySelection) -> None:
    """Raises NOT_LEADER where a leader would have to answer and none does."""
    without = [str(one.partition) for one in partitions if one.leader is None]
    if not without or selection.stale:
        return
    names = ", ".join(without[:NAMED_MAX]) + (", …" if len(without) > NAMED_MAX else "")
    which = f"Partition {names} has" if len(without) == 1 else f"Partitions {names} have"
    why = (
        f"{which} no leader, so that keys cannot be read or written there. The page tries again by itself; if no leader"
        " comes, start the brokers of the replicas, or elect a leader on the tab Partitions."
    )
    raise Problem("NOT_LEADER", why)


async def _entries(kv: comet.KV[bytes], selection: KeySelection, partitions: int) -> tuple[Sequence[Entry], bool]:
    """The entries of the page, and whether more follow. Each partition gives as many as the page still takes, so the
    first few say how many more may be read at once."""
    found: list[Entry] = []
    size, after, wanted = 0, selection.after, max(FIRST_KEYS // max(partitions, 1), 1)
    while True:
        read = await kv.entries(selection.prefix, after=after, limit=wanted, stale=selection.stale)
        found += read
        size += sum(len(one.key) + len(one.value or b"") for one in read)
        if len(read) < wanted:
            return found[:KEYS_MAX], len(found) > KEYS_MAX
        if len(found) > KEYS_MAX or size >= PAGE_BYTES:
            return found[:KEYS_MAX], True
        after = read[-1].key
        at_once = (PAGE_BYTES - size) * len(found) // (size * partitions)
        wanted = max(min(KEYS_MAX + 1 - len(found), at_once), 1)


def _previews(entries: Iterable[Entry], detail: TopicDetail) -> tuple[RecordPreview, ...]:
    return tuple(_preview(one, partition_for(one.key, len(detail.partitions))) for one in entries)


def _preview(entry: Entry, partition: int) -> RecordPreview:
    """An entry, with the key in full where an address may have it."""
    value = entry.value
    return RecordPreview(
        partition=partition,
        offset=entry.revision,
        timestamp_us=entry.timestamp_us,
        key=entry.key[: KEY_BYTES_MAX + 1],
        value=None if value is None else value[:SHOWN_BYTES],
        size=len(entry.key) + len(value or b""),
        encrypted=key_id_of(value) or "",
    )
