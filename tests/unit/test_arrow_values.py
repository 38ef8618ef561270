"""Values as columns: what Arrow's reader makes of a batch is what the codec makes of its rows, or the rows decide."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import comet
from comet.errors import InvalidArgument, SerdeError
from comet.records import decode
from comet.serde import serde_for
from comet.values.arrow_columns import ArrowColumns, BatchMerger
from comet.values.arrow_types import shape_of
from comet.values.arrow_values import Values
from tests.property.records_strategies import build, stamp

T = TypeVar("T")


@comet.model
class Leg:
    size: int
    note: str | None = None


@comet.model
class Order:
    symbol: str
    price: float
    mark: float | None
    legs: list[Leg]
    count: int = 1
    first: Leg | None = None
    done: bool = False


def batch_of(values: list[bytes | None], base: int = 100, **more: Any) -> comet.RecordBatch[bytes]:
    data = stamp(build({"values": values, "timestamps": 7} | more), base_offset=base)
    return comet.RecordBatch[bytes]("orders", 2, decode(data, stamped=True))


def columns_of(kind: Any, values: list[bytes | None], fields: list[str] | None = None) -> list[list[Any]]:
    batch = batch_of(values)
    return [column.to_pylist() for column in Values(kind, fields).of(batch, batch.to_arrow().column("value"))]


def plain_of(value: Any) -> Any:
    """As Arrow gives it back."""
    if isinstance(value, list):
        return [plain_of(one) for one in value]
    return asdict(value) if isinstance(value, Leg) else value


def by_rows(kind: Any, values: list[bytes | None]) -> list[list[Any]] | int:
    """The same from the codec alone; or the offset of the first value that it refuses."""
    shape, codec = shape_of(kind), serde_for(kind)
    rows: list[Any] = []
    for at, value in enumerate(values):
        try:
            event = None if value is None else codec.decode(value)
        except SerdeError:
            return 100 + at
        rows.append(event)
    return [
        [None if event is None else plain_of(getattr(event, field.name)) for event in rows] for field in shape.fields
    ]


leg = st.fixed_dictionaries({"size": st.integers(-5, 5)}, optional={"note": st.none() | st.text(max_size=3)})
good: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "symbol": st.text(max_size=4) | st.just("}{") | st.just("} null"),
        "price": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3),
        "mark": st.none() | st.floats(0, 1),
        "legs": st.lists(leg, max_size=2),
    },
    optional={"count": st.integers(-9, 9), "first": st.none() | leg, "done": st.booleans(), "other": st.just([{}])},
)
odd: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["symbol", "price", "mark", "legs", "count", "first", "done"]),
    st.sampled_from([None, 1, 1.0, 1 << 63, "x", True, [], {}, [None], [{"size": None}], {"size": 1}, {"note": ""}]),
)
mended = st.builds(lambda one, other: one | other, good, odd)
whole = st.builds(
    lambda one, indent: json.dumps(one, indent=indent).encode(), good | mended, st.sampled_from([None, 0])
)
pieces = [
    b"",
    b" ",
    b"null",
    b"{}",
    b"[]",
    b"}{",
    b"\n",
    b"{",
    b"}",
    b'{"symbol":NaN}',
    b'{"symbol":"\xff"}',
    b"{}null{}",
]
text = whole | st.builds(lambda one, end: one + end, whole, st.sampled_from(pieces)) | st.sampled_from(pieces)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.none() | whole, min_size=1, max_size=6) | st.lists(st.none() | text, min_size=1, max_size=4))
def test_columns_are_what_the_codec_makes_of_each_row(values: list[bytes | None]) -> None:
    expected = by_rows(Order, values)
    try:
        found: Any = columns_of(Order, values)
    except SerdeError as error:
        found = int(error.details["offset"])
        if expected != found:  # the codec takes whole numbers of any size, a column does not
            assert b"9223372036854775808" in (values[found - 100] or b"")
            return
    assert found == expected


@pytest.mark.parametrize("values", [[b"null"], [b"{}null{}", b"{}", b"{}"], [b"{}", b"null", b"{}"], [b"{}\nnull"]])
def test_a_value_that_is_nothing_kills_nobody(values: list[bytes | None]) -> None:
    """Arrow's reader would take the process with it."""
    with pytest.raises(SerdeError):
        columns_of(pa.schema([("a", pa.int64())]), values)


@pytest.mark.parametrize(
    "values",
    [[b"{}", b'{}{"b":', b"1}"], [b"{}", b'{"b":[', b"{},", b"{}]}"], [b"{}", b'{}null{"b":[', b"{},", b"{}]}"]],
)
def test_values_that_are_objects_only_together_are_none(values: list[bytes | None]) -> None:
    with pytest.raises(SerdeError) as caught:
        columns_of(pa.schema([("a", pa.int64())]), values)
    assert caught.value.details == {"topic": "orders", "partition": "2", "offset": "101"}


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


class Positive(msgspec.Struct, rename="camel"):
    lot_size: Annotated[int, msgspec.Meta(gt=0)]


class Raised(pydantic.BaseModel):
    price: float

    @pydantic.field_validator("price")
    @classmethod
    def higher(cls, price: float) -> float:
        return price + 1


@pydantic.dataclasses.dataclass
class Checked:
    price: float = pydantic.Field(alias="p")

    @pydantic.field_validator("price")
    @classmethod
    def higher(cls, price: float) -> float:
        return price + 1


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Doubled:
    n: int

    def __post_init__(self) -> None:
        self.n *= 2


class Point(TypedDict, total=False):
    x: int
    y: int


@dataclass
class Wide:
    side: Side
    kind: Literal["a", "b"]
    when: datetime
    day: date
    took: timedelta
    id: UUID
    raw: bytes
    tags: dict[str, int]
    either: int | float
    seen: set[str]
    points: list[Point] = field(default_factory=list)


def test_what_arrow_cannot_read_goes_through_the_codec() -> None:
    one = Wide(
        Side.SELL, "b", datetime(2026, 1, 1, 12, tzinfo=UTC), date(2026, 1, 2), timedelta(seconds=90), UUID(int=5),
        b"\xff\x00", {"a": 1}, 2, {"x"}, [{"x": 1}],
    )  # fmt: skip
    found = [column[0] for column in columns_of(Wide, [serde_for(Wide).encode(one)])]
    assert found == [
        "sell", "b", one.when, one.day, one.took, str(one.id), b"\xff\x00", [("a", 1)], 2.0, ["x"],
        [{"x": 1, "y": None}],
    ]  # fmt: skip
    assert columns_of(Positive, [b'{"lotSize": 3}']) == [[3]]
    assert columns_of(Raised, [b'{"price": 1}', None]) == [[2.0, None]]
    assert columns_of(Checked, [b'{"p": 1}', None]) == [[2.0, None]]
    assert columns_of(Doubled, [b'{"n": 2}']) == [[4]]
    assert columns_of(Box[int], [b'{"content": 2}']) == [[2]]
    with pytest.raises(SerdeError):
        columns_of(Box[int], [b'{"content": 2.5}'])
    assert columns_of(Point, [b'{"y": 2}', b"{}"]) == [[None, None], [2, None]]
    with pytest.raises(SerdeError, match="record 101 of orders/2"):
        columns_of(Positive, [b'{"lotSize": 3}', b'{"lotSize": 0}'])
    with pytest.raises(SerdeError, match="does not fit"):
        columns_of(Doubled, [b'{"n": 4611686018427387904}'])


SCHEMA = pa.schema(
    [
        pa.field("n", pa.int32()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("money", pa.decimal128(10, 2)),
        pa.field("tags", pa.map_(pa.string(), pa.int64())),
        pa.field("path", pa.list_(pa.struct([("x", pa.float64())]))),
    ]
)


def test_a_schema_takes_what_it_names_of_any_object() -> None:
    values: list[bytes | None] = [
        b'{"n":1,"text":"a","at":"2026-01-01T00:00:00Z","day":"2026-01-02","money":"1.10","tags":{"k":1},"path":[{"x":1}]}',
        b'{"text":"b","more":[]}',
        None,
    ]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    found = columns_of(SCHEMA, values)
    assert [column[0] for column in found][:4] == [1, "a", at, date(2026, 1, 2)]
    assert [str(found[4][0]), found[5][0], found[6][0]] == ["1.10", [("k", 1)], [{"x": 1.0}]]
    assert [column[1] for column in found] == [None, "b", None, None, None, None, None]
    assert [column[2] for column in found] == [None] * 7
    assert columns_of(SCHEMA, values, ["n", "at"]) == [[1, None, None], [at, None, None]]


def test_text_is_of_any_kind() -> None:
    kind = pa.schema([("a", pa.large_string()), ("b", pa.string_view()), ("c", pa.list_(pa.large_string()))])
    value = b'{"a":"x","b":"y","c":["z"]}'
    assert ArrowColumns(kind, ["a", "b"]).of(batch_of([value])).to_pylist() == [{"a": "x", "b": "y"}]
    assert ArrowColumns(kind, ["c"]).of(batch_of([value])).to_pylist() == [{"c": ["z"]}]


@pytest.mark.parametrize(
    "wrong",
    [b"{}", b'{"text":1}', b'{"text":"a","n":true}', b'{"text":"a","n":3000000000}', b'{"text":"a","tags":[]}', b"3"],
)
def test_what_does_not_fit_a_schema_is_said_with_its_place(wrong: bytes) -> None:
    with pytest.raises(SerdeError, match=r"record 101 of orders/2: does not fit the schema") as caught:
        columns_of(SCHEMA, [b'{"text":"a"}', wrong])
    assert caught.value.details["offset"] == "101"


@dataclass
class Loop:
    next: Loop | None


@dataclass
class Mixed:
    either: int | str


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (dict, "has no columns: give a class"),
        (Any, "has no columns: give a class"),
        (Loop, "contains itself"),
        (Mixed, "Mixed.either is a choice of several types"),
        (complex, "which cannot be a column"),
        (pa.schema([("a", pa.float16())]), "JSON cannot be decoded to halffloat"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "two fields of the same name"),
        (pa.schema([('a"', pa.int8())]), "invalid field name for a column"),
    ],
)
def test_types_without_columns_are_refused(kind: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        ArrowColumns(kind)


# ---- the columns of a table


def test_a_table_has_what_a_record_has() -> None:
    batch = batch_of([b"a", None], keys=[None, b"k"], headers=[[("h", b"1")], None])
    made = ArrowColumns(None, ["offset", "headers", "value", "key", "topic", "partition", "timestamp"]).of(batch)
    assert made.to_pylist()[1] == {
        "offset": 101, "headers": [], "value": None, "key": b"k", "topic": "orders", "partition": 2,
        "timestamp": datetime(1970, 1, 1, microsecond=7, tzinfo=UTC),
    }  # fmt: skip
    assert made["headers"].to_pylist()[0] == [{"name": "h", "value": b"1"}]
    assert ArrowColumns().schema.names == ["key", "value", "topic", "partition", "offset", "timestamp"]
    assert ArrowColumns(Leg).schema.names == ["key", "size", "note", "topic", "partition", "offset", "timestamp"]
    assert ArrowColumns(int).of(batch_of([b"3", None]))["value"].to_pylist() == [3, None]


def test_a_field_comes_before_a_column_of_its_name() -> None:
    kind = pa.schema([("offset", pa.string()), ("_offset", pa.string()), ("key", pa.int64())])
    columns = ArrowColumns(kind, ["__offset", "offset", "_key", "key"])
    assert columns.of(batch_of([b'{"offset":"a","key":1}'])).to_pylist() == [
        {"__offset": 100, "offset": "a", "_key": None, "key": 1}
    ]
    assert ArrowColumns(kind).schema.names == [
        "_key", "offset", "_offset", "key", "topic", "partition", "__offset", "timestamp",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["bid"], "unknown column 'bid'; use one of key"),
        ([], "columns is empty"),
        ("key", r"columns=\['key'\]"),
    ],
)
def test_columns_that_there_are_not_are_refused(columns: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        ArrowColumns(None, columns)


def test_what_is_not_asked_for_is_not_decoded() -> None:
    wrong = b'{"symbol":"a","price":"no number"}'
    assert ArrowColumns(Order, ["offset"]).of(batch_of([b"no object"])).to_pylist() == [{"offset": 100}]
    assert ArrowColumns(SCHEMA, ["text", "n"]).of(batch_of([b'{"text":"a","day":"no day"}'])).to_pylist() == [
        {"text": "a", "n": None}
    ]
    with pytest.raises(SerdeError):
        ArrowColumns(Order, ["price"]).of(batch_of([wrong]))


def test_small_batches_are_put_together_and_keep_no_message() -> None:
    gathering = BatchMerger(ArrowColumns(None, ["timestamp"]))
    large = batch_of([b"x" * 1000] * 4_200, timestamps=list(range(4_200)))
    small = [batch_of([b"y"] * 10, base=at, timestamps=list(range(10))) for at in range(4_200, 4_250, 10)]
    full = gathering.add([large, *small])
    assert [one.num_rows for one in full] == [4_200]
    rest = gathering.rest()
    assert [one.num_rows for one in rest] == [50]
    assert gathering.rest() == []
    for one in (*full, *rest):
        assert one.column(0).buffers()[1].parent is None
    whole = ArrowColumns(None, ["value"])
    assert whole.together([whole.of(large)]).column(0).buffers()[2].parent is not None  # worth keeping, and not copied
