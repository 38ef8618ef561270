"""Facts about dead letters from their indexes, which read on a little at each call."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from comet_gateway.dashboard.sources import Sources
from comet_gateway.dead_letters import selection
from comet_gateway.dead_letters.dead_letter import DeadLetter, DeadLetterState
from comet_gateway.dead_letters.index import Counts, DeadLetterIndex
from comet_gateway.dead_letters.registry import DeadLetterIndexes
from comet_web import facts
from comet_web.page_request import PageRequest
from comet_web.views.dead_letter_topic import state_of

DISCOVERY_S: Final = 0.25  # of one call; the next one continues
CAUSES_MAX: Final = 500
SHOWN_MAX: Final = 1_000  # of a page; the API gives all
CACHED_MAX: Final = 16  # filters


class Newest:
    """A cache of the newest dead letters by filter. Kept by the sources."""

    def __init__(self, _: Sources) -> None:
        self._found: OrderedDict[tuple[bytes, selection.Filter], tuple[int, list[DeadLetter], int]] = OrderedDict()

    async def of(self, topic_index: DeadLetterIndex, wanted: selection.Filter) -> tuple[list[DeadLetter], int]:
        key, version = (topic_index.topic_id, wanted), topic_index.version
        known = self._found.get(key)
        if known is None or known[0] != version:
            known = self._found[key] = (version, *await selection.newest(topic_index, wanted, SHOWN_MAX))
        self._found.move_to_end(key)
        while len(self._found) > CACHED_MAX:
            self._found.popitem(last=False)
        return known[1], known[2]


def _until() -> float:
    return asyncio.get_running_loop().time() + DISCOVERY_S


def _indexes(sources: Sources) -> DeadLetterIndexes:
    return sources.backend.dead_letters


async def dead_letters(sources: Sources, _: PageRequest) -> facts.DeadLetters:
    indexes = _indexes(sources)
    scanned = await indexes.discover(_until())
    known = indexes.known()
    causes = [cause for topic_index in known for cause in _causes(topic_index)]
    causes.sort(key=lambda cause: -cause.pending)
    return facts.DeadLetters(
        time.time_ns() // 1_000,
        tuple(map(_topic, known)),
        tuple(causes[:CAUSES_MAX]),
        len(causes),
        scanned.inspected,
        scanned.topics,
    )


async def dead_letter_topic(sources: Sources, request: PageRequest) -> facts.DeadLetterTopicDetail:
    topic_index = await _indexes(sources).topic_index(request.params["topic"], _until())
    state = state_of(request)
    wanted = selection.Filter(
        None if state == "all" else DeadLetterState(state),
        request.query.get("group") or None,
        request.query.get("cause") or None,
        topic=request.query.get("from") or None,
    )
    found, matched = await sources.part(Newest).of(topic_index, wanted)
    causes = sorted(_causes(topic_index), key=lambda cause: -cause.pending)
    return facts.DeadLetterTopicDetail(
        time.time_ns() // 1_000,
        _topic(topic_index),
        tuple(causes[:CAUSES_MAX]),
        len(causes),
        tuple(map(_dead_letter, found)),
        matched,
    )


def _topic(topic_index: DeadLetterIndex) -> facts.DeadLetterTopic:
    states = topic_index.states()
    return facts.DeadLetterTopic(
        topic_index.topic,
        states[DeadLetterState.PENDING],
        states[DeadLetterState.REDRIVEN],
        states[DeadLetterState.DISCARDED],
        topic_index.records,
        topic_index.scanned,
        topic_index.older,
        topic_index.complete,
    )


def _causes(topic_index: DeadLetterIndex) -> list[facts.DeadLetterCause]:
    return [_cause(topic_index.topic, group, cause, counts) for (group, cause), counts in topic_index.counts.items()]


def _cause(topic: str, group: str, cause: str, counts: Counts) -> facts.DeadLetterCause:
    states = counts.states
    return facts.DeadLetterCause(
        topic,
        group,
        cause,
        states[DeadLetterState.PENDING],
        states[DeadLetterState.REDRIVEN],
        states[DeadLetterState.DISCARDED],
        counts.newest_us,
        tuple(sorted(+counts.sources)),
    )


def _dead_letter(dead_letter: DeadLetter) -> facts.DeadLetter:
    return facts.DeadLetter(
        **dead_letter.fields(),
        time_us=dead_letter.time_us,
        died_us=dead_letter.died_us,
        size=dead_letter.size,
        to=dead_letter.to,
        by=dead_letter.by,
    )
