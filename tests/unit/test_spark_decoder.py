"""Values as Arrow structs, against Python's own reader of JSON; no Spark is needed for it."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet.errors import InvalidArgument
from comet.spark import decoder
from comet.spark.decoder import Decoder, Undecodable
from comet.spark.value_types import Named

INNER = pa.struct([("deep", pa.int32())])
KIND = pa.struct(
    [
        ("a name-that is none of Python's", pa.string()),
        ("price", pa.float64()),
        ("size", pa.int64()),
        ("buy", pa.bool_()),
        ("many", pa.list_(pa.float64())),
        ("inner", INNER),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
INTS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    "a name-that is none of Python's": st.text(),
    "price": FLOATS,
    "size": INTS,
    "buy": st.booleans(),
    "many": st.lists(st.none() | FLOATS, max_size=3),
    "inner": st.fixed_dictionaries({"deep": st.none() | st.integers(-9, 9), "other": st.text(max_size=2)}),
    "counts": st.dictionaries(st.text(max_size=2), INTS, max_size=2),
    "nobody asked": st.recursive(st.none() | st.text(), st.lists, max_leaves=4),
}
OBJECTS = st.fixed_dictionaries({}, optional={name: st.none() | kind for name, kind in VALUES.items()})


def as_read(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return None
    row = {field.name: value.get(field.name) for field in KIND}
    if row["inner"] is not None:
        row["inner"] = {"deep": row["inner"]["deep"]}
    if row["counts"] is not None:
        row["counts"] = list(row["counts"].items())
    return row


@settings(max_examples=30)
@given(st.lists(st.none() | OBJECTS, max_size=6), st.integers(1, 5))
def test_objects_become_rows(objects: list[dict[str, Any] | None], at_once: int) -> None:
    values = pa.array([None if one is None else json.dumps(one).encode() for one in objects], pa.binary())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "AT_ONCE", at_once)
        found = Decoder(KIND).decode(values, permissive=False)
    found.validate(full=True)
    assert found.type == KIND
    assert found.to_pylist() == [as_read(one) for one in objects]


@pytest.mark.parametrize(
    "wrong",
    [b"", b"{", b"{} {}", b"{}{}", b"null", b"[]", b"\xff", b'{"size": "5"}', b'{"size": 9223372036854775808}',
     b'{"price": "\xff"}', b'{"inner": {"deep": 2147483648}}', b'{"buy": 1}', b'{"many": [[]]}'],
)  # fmt: skip
def test_what_is_no_such_object_is_named_or_null(wrong: bytes) -> None:
    values = pa.array([b'{"size": 1}', None, wrong, b'{"size": 4}'], pa.binary())
    one = Decoder(KIND)
    with pytest.raises(Undecodable) as raised:
        one.decode(values, permissive=False)
    assert raised.value.at == 2
    found = one.decode(values, permissive=True)
    assert [None if row is None else row["size"] for row in found.to_pylist()] == [1, None, None, 4]


@pytest.mark.parametrize("wrong", [b"{}", b'{"size": null}', b'{"at": {"x": 1}}'])
def test_an_object_without_what_must_not_be_null_is_none(wrong: bytes) -> None:
    must = pa.field("size", pa.int64(), nullable=False)
    one = Decoder(pa.struct([must, pa.field("at", pa.struct([pa.field("x", pa.int64(), nullable=False)]))]))
    values = pa.array([b'{"size": 1, "at": {"x": 2}}', None, wrong, b'{"size": 4}'], pa.binary())
    with pytest.raises(Undecodable, match=r"required|null") as raised:
        one.decode(values, permissive=False)
    assert raised.value.at == 2
    found = one.decode(values, permissive=True).to_pylist()
    assert found == [{"size": 1, "at": {"x": 2}}, None, None, {"size": 4, "at": None}]


def test_fields_are_found_as_json_names_them() -> None:
    level = pa.struct([("bid_size", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    kind = pa.struct(
        [
            ("bid_size", pa.int64()),
            ("best", level),
            ("levels", pa.list_(level)),
            ("by_name", pa.map_(pa.string(), pa.list_(level))),
            ("bidSize", pa.string()),  # of another name, too
        ]
    )
    inner = {"bid_size": Named("bidSize", {})}
    names = {
        "bid_size": Named("size", {}),
        "best": Named("Best", inner),
        "levels": Named("levels", inner),
        "by_name": Named("byName", inner),
        "gone": Named("Gone", {}),
    }
    texts = [
        b'{"size": 1, "bid_size": 9, "Best": {"bidSize": 2, "bid_size": 9}, "bidSize": "x"}',
        None,
        b'{"levels": [null, {"bidSize": 3}], "byName": {"a": [{"bidSize": 4}, {}], "b": []}, "Best": null}',
        b'{"size": "1"}',
    ]
    found = Decoder(kind, names).decode(pa.array(texts, pa.binary()), permissive=True)
    found.validate(full=True)
    assert found.type == kind

    def of(size: int | None) -> dict[str, Any]:
        return {"bid_size": size, "at": None}

    nothing = dict.fromkeys(field.name for field in kind)
    assert found.to_pylist() == [
        {**nothing, "bid_size": 1, "best": of(2), "bidSize": "x"},
        None,
        {**nothing, "levels": [None, of(3)], "by_name": [("a", [of(4), of(None)]), ("b", [])]},
        None,
    ]


def test_times_are_those_of_utc() -> None:
    kind = pa.struct([("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32())])
    text = b'{"at": "2026-11-22T07:00:00.000001+02:00", "day": "2026-11-22"}'
    (row,) = Decoder(kind).decode(pa.array([text]), permissive=False).to_pylist()
    assert row["at"] == datetime.datetime(2026, 11, 22, 5, 0, 0, 1, tzinfo=datetime.UTC)
    assert row["day"] == datetime.date(2026, 11, 22)


def test_a_type_that_json_has_nothing_for_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="month_day_nano_interval"):
        Decoder(pa.struct([("took", pa.month_day_nano_interval())]))


def test_a_name_that_no_reader_takes_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="names"):
        Decoder(pa.struct([('a"b', pa.int64())]))


def test_a_null_alone_is_no_object() -> None:
    with pytest.raises(Undecodable):
        Decoder(pa.struct([("a", pa.int64())])).decode(pa.array([b"null"]), permissive=False)
