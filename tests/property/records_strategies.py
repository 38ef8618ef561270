"""Record batches as Hypothesis draws them: every flag, codec and kind of column, small enough to shrink well."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from comet.records import Codec, encode, make_stamp

int64 = st.integers(-(2**63), 2**63 - 1)
small_bytes = st.binary(max_size=12)


def columns(codecs: tuple[Codec, ...] = tuple(Codec)) -> st.SearchStrategy[dict[str, Any]]:
    """The arguments of encode(), now and then of a batch of which no record is left."""
    return st.integers(0, 19).flatmap(lambda one: empty(codecs) if one == 0 else some(codecs))


@st.composite
def some(draw: st.DrawFn, codecs: tuple[Codec, ...]) -> dict[str, Any]:
    count = draw(st.integers(1, 12) | st.integers(60, 135))
    if count >= 60 or draw(st.booleans()):  # values of one size take a path of their own
        size = draw(st.integers(0, 9))
        values: list[bytes | None] = [bytes([65 + i % 26]) * size for i in range(count)]
        if draw(st.booleans()):
            values[draw(st.integers(0, count - 1))] = draw(st.none() | small_bytes)
    else:
        values = draw(st.lists(st.none() | small_bytes, min_size=count, max_size=count))
    drawn: dict[str, Any] = {"values": values, "timestamps": draw(int64), "codec": draw(st.sampled_from(codecs))}
    if draw(st.booleans()):
        drawn["timestamps"] = [draw(int64) + 0 if i < 8 else i for i in range(count)]
    if draw(st.booleans()):
        drawn["keys"] = [draw(st.none() | small_bytes) if i < 8 else b"k" for i in range(count)]
    if draw(st.booleans()):
        pairs = st.lists(st.tuples(st.text(max_size=4), small_bytes), max_size=3)
        drawn["headers"] = [draw(st.none() | pairs) if i < 8 else [] for i in range(count)]
    drawn |= draw(offsets(count))
    for name in ("due", "expiry"):
        if draw(st.booleans()):
            drawn[name] = [draw(int64) if i < 8 else -i for i in range(count)]
    if draw(st.booleans()):
        drawn["producer_id"] = draw(st.integers(1, 2**63 - 1))
        drawn["producer_epoch"] = draw(st.integers(0, 2**32 - 1))
        drawn["base_sequence"] = draw(st.integers(0, 2**63 - 1 - (1 << 20)))
        drawn["transactional"] = draw(st.booleans())
        if not drawn["transactional"] and draw(st.booleans()):
            drawn |= {"keyed": True, "producer_epoch": 0}
    drawn["schema_id"] = draw(st.integers(0, 2**32 - 1))
    return drawn


@st.composite
def offsets(draw: st.DrawFn, count: int) -> dict[str, Any]:
    drawn: dict[str, Any] = {}
    if draw(st.booleans()):
        gaps = [draw(st.integers(1, 3)) if i < 8 else 1 for i in range(count)]
        drawn["offset_deltas"] = [sum(gaps[: i + 1]) - 1 for i in range(count)]
    if draw(st.booleans()):
        drawn["span"] = drawn.get("offset_deltas", [count - 1])[-1] + 1 + draw(st.integers(0, 2) | st.just(1 << 19))
    return drawn


@st.composite
def empty(draw: st.DrawFn, codecs: tuple[Codec, ...]) -> dict[str, Any]:
    span, sequence = draw(st.integers(1, 1 << 20)), draw(st.integers(0, 2**63 - 1 - (1 << 20)))
    producer = {"producer_id": draw(st.integers(1, 2**63 - 1)), "base_sequence": sequence}
    return {
        "values": [], "timestamps": draw(int64), "span": span, "codec": draw(st.sampled_from(codecs)),
        **(producer if draw(st.booleans()) else {}),
    }  # fmt: skip


def build(drawn: dict[str, Any]) -> bytes:
    return b"".join(encode(**drawn))


def stamp(batch: bytes, base_offset: int = 0, append_time_us: int = 1, leader_epoch: int = 1) -> bytes:
    """The batch as its leader writes it."""
    return make_stamp(base_offset, append_time_us, leader_epoch, len(batch)) + batch[28:]
