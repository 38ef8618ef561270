"""Typed codecs: every kind of type there and back, and errors that say which type, field and value."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, assert_type

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import InvalidArgument, SerdeError
from comet.serde import Serde, model, serde_for

JSON = b'{"symbol":"EURUSD","bid":1.25}'


@model
class Plain:
    symbol: str
    bid: float


@model
@dataclasses.dataclass
class Data:
    symbol: str
    bid: float


@model
class Struct(msgspec.Struct):
    symbol: str
    bid: float


@model
class Model(pydantic.BaseModel):
    symbol: str
    bid: float


@pydantic.dataclasses.dataclass
class PydanticData:
    symbol: str
    bid: float


@model
class Typed(TypedDict):
    symbol: str
    bid: float


class Tuple(NamedTuple):
    symbol: str
    bid: float


class Side(enum.Enum):
    BUY = "buy"


@model
class Derived(Data):
    side: Side = Side.BUY


class Tree(msgspec.Struct):
    children: list[Tree] = []


class Plainest:
    """No annotations, no decorator."""


class Undecorated:
    symbol: str


@dataclasses.dataclass
class Holds:
    model: Model


@dataclasses.dataclass
class HoldsUndecorated:
    many: dict[str, list[Undecorated]]


CLASSES: list[Callable[..., Any]] = [Plain, Data, Struct, Model, PydanticData, Typed]
MODELS = {Model, PydanticData}


@pytest.mark.parametrize("kind", CLASSES)
def test_an_event_is_a_json_object(kind: Any) -> None:
    codec: Serde[Any] = serde_for(kind)
    value = kind(symbol="EURUSD", bid=1.25)
    assert codec.encode(value) == JSON
    assert codec.decode(JSON) == value
    assert type(codec.decode(JSON)) is type(value)
    assert codec.decode_many([JSON, JSON]) == [value, value]
    assert repr(codec) == f"<Serde of {kind.__name__}>"


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (bytes, b"\x00\xff", b"\x00\xff"),
        (bytes, b"", b""),
        (str, "größe", "größe".encode()),
        (str, "", b""),
        (int, -5, b"-5"),
        (float, 1.5, b"1.5"),
        (bool, True, b"true"),
        (dict, {"a": [1, None]}, b'{"a":[1,null]}'),
        (list, [1, "a"], b'[1,"a"]'),
        (Any, {"a": 1}, b'{"a":1}'),
        (Any, None, b"null"),
        (object, [1], b"[1]"),
        (dict[str, int], {"a": 1}, b'{"a":1}'),
        (list[Struct], [Struct("a", 1.0)], b'[{"symbol":"a","bid":1.0}]'),
        (Struct | None, None, b"null"),
        (Struct | None, Struct("a", 1.0), b'{"symbol":"a","bid":1.0}'),
        (int | str, "a", b'"a"'),
        (Literal["a", "b"], "a", b'"a"'),
        (Side, Side.BUY, b'"buy"'),
        (datetime, datetime(2024, 1, 2, tzinfo=UTC), b'"2024-01-02T00:00:00Z"'),
        (Tuple, Tuple("a", 1.0), b'["a",1.0]'),
        (Annotated[int, msgspec.Meta(ge=0)], 3, b"3"),
        (Annotated[int, ["not hashable"]], 3, b"3"),
        (Derived, Derived("a", 1.0), b'{"symbol":"a","bid":1.0,"side":"buy"}'),
        (Tree, Tree([Tree()]), b'{"children":[{"children":[]}]}'),
    ],
)
def test_there_and_back(kind: Any, value: Any, data: bytes) -> None:
    codec = serde_for(kind)
    assert codec.encode(value) == data
    assert codec.decode(data) == value


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"symbol":"EURUSD","bid":"much"}', "bid"),
        (b'{"symbol":"EURUSD"}', "bid"),
        (b'{"symbol":7,"bid":1}', "symbol"),
        (b"[]", None),
        (b"{", None),
        (b"", None),
        (b"\xff", None),
        (b'{"symbol":"\xff","bid":1}', None),
        (b"[" * 100_000, None),
        (None, None),
    ],
)
def test_an_error_names_the_type_the_field_and_the_value(kind: Any, data: bytes, field: str | None) -> None:
    codec: Serde[Any] = serde_for(kind)
    with pytest.raises(SerdeError) as caught:
        codec.decode(data)
    assert caught.value.details == {"type": kind.__name__} | ({"field": field} if field else {})
    assert f"cannot decode as {kind.__name__}" in caught.value.message
    assert caught.value.__cause__ is not None
    with pytest.raises(SerdeError, match="cannot decode value 2 as") as caught:
        codec.decode_many([JSON, JSON, data, b"{"])
    assert caught.value.details["index"] == "2"


def test_a_field_deep_inside_is_named_by_its_path() -> None:
    with pytest.raises(SerdeError) as caught:
        serde_for(list[Struct]).decode(b'[{"symbol":"a","bid":1},{"symbol":"a","bid":null}]')
    assert caught.value.details["field"] == "[1].bid"

    class Book(pydantic.BaseModel):
        quotes: list[Model]

    with pytest.raises(SerdeError) as caught:
        serde_for(Book).decode(b'{"quotes":[{"symbol":"a","bid":1},{"symbol":"a","bid":null}]}')
    assert caught.value.details["field"] == "quotes.1.bid"


@pytest.mark.parametrize("kind", [Any, dict, list, int, float, bool, str])
@pytest.mark.parametrize("data", [b"\xff", b"\xc3(", None, b"[" * 100_000 + b"\xff"])
def test_bytes_that_are_no_text_are_refused(kind: Any, data: bytes) -> None:
    with pytest.raises(SerdeError):
        serde_for(kind).decode(data)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (bytes, "text"), (bytes, 3), (bytes, None), (str, b"bytes"), (str, "\ud800"), (int, True), (int, 1.0),
        (int, "1"), (float, True), (float, "1"), (bool, 1), (dict, []), (dict, {"a": object()}),
        (Plain, Struct("a", 1.0)), (Struct, {"symbol": "a"}),
        (Struct, Struct("\ud800", 1.0)), (Model, Plain("a", 1.0)), (Typed, []),
        (dict[str, int], [1]), (Model, Model.model_construct(symbol=object(), bid=1.0)),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_not_encoded(kind: Any, value: Any) -> None:
    with pytest.raises(SerdeError) as caught:
        serde_for(kind).encode(value)
    assert "cannot encode" in caught.value.message
    assert caught.value.details["type"] == (kind.__name__ if not hasattr(kind, "__args__") else str(kind))


class Filled(msgspec.Struct, rename="camel", tag=True):
    trade_price: decimal.Decimal
    legs: list[Struct]
    note: str | None = None


@pytest.mark.parametrize("kind", [Plain, Data, Struct])
@pytest.mark.parametrize(
    ("fields", "field"), [({"bid": "nan?"}, "bid"), ({"symbol": 7}, "symbol"), ({"bid": None}, "bid")]
)
def test_fields_are_checked_against_their_annotations_when_they_are_written(
    kind: Any, fields: dict[str, Any], field: str
) -> None:
    wrong = kind(**{"symbol": "EURUSD", "bid": 1.25} | fields)
    with pytest.raises(SerdeError, match=f"cannot write as {kind.__name__}, field '{field}'") as caught:
        serde_for(kind).encode_checked(wrong)
    assert caught.value.details == {"type": kind.__name__, "field": field}
    assert serde_for(kind).encode(wrong), "encode trusts the fields"
    assert serde_for(kind).encode_checked(kind(symbol="EURUSD", bid=1.25)) == JSON


@pytest.mark.parametrize("bid", [float("nan"), float("inf"), float("-inf")])
def test_a_float_that_json_does_not_have_is_refused_and_the_reason_named(bid: float) -> None:
    with pytest.raises(SerdeError, match="JSON has no NaN and no infinity"):
        serde_for(Plain).encode_checked(Plain("EURUSD", bid))


@pytest.mark.parametrize(
    "value",
    [
        Plain("EURUSD", 1), Derived("a", 1.0), Tree([Tree()]), Model(symbol="a", bid=1.0), {"a": float("nan")},
        [1], "a", 1, Filled(decimal.Decimal("1.10"), [Struct("a", 1.0)]),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_written_as_it_was(value: Any) -> None:
    codec = serde_for(type(value))
    assert codec.encode_checked(value) == codec.encode(value)


def test_a_list_that_contains_itself_is_not_encoded() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SerdeError):
        serde_for(list).encode(endless)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Plainest, "no serde for Plainest: decorate it with @comet.model"),
        (Undecorated, "no serde for Undecorated: decorate it with @comet.model"),
        (HoldsUndecorated, "no serde for Undecorated inside HoldsUndecorated: decorate it"),
        (Holds, "no serde for Model inside Holds: use pydantic models throughout"),
        (list[Undecorated], "no serde for Undecorated inside list"),
        ("Struct", "Struct is not a model"),
        (5, "5 is not a model"),
        (Struct | Typed, "not a model"),
    ],
)
def test_a_type_without_a_codec_is_refused_at_once(kind: Any, message: str) -> None:
    with pytest.raises(SerdeError, match=message):
        serde_for(kind)


def test_codecs_are_kept() -> None:
    assert serde_for(Struct) is serde_for(Struct)
    assert serde_for(int) is not serde_for(float)


def test_the_types_are_known_to_a_type_checker() -> None:
    codec = serde_for(Struct)
    assert_type(codec, Serde[Struct])
    assert_type(codec.decode(JSON), Struct)
    assert_type(codec.decode_many([JSON]), list[Struct])
    assert_type(serde_for(Plain).decode(JSON).bid, float)
    assert_type(serde_for(bytes).decode(b""), bytes)


# ---- event


def test_a_plain_class_becomes_a_dataclass_with_slots() -> None:
    value = Plain("a", 1.0)
    assert dataclasses.is_dataclass(value)
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize("kind", [Data, Struct, Model, PydanticData, Typed])
def test_an_event_type_stays_what_it_is(kind: Any) -> None:
    assert model(kind) is kind


def test_a_subclass_of_an_event_gets_its_own_fields() -> None:
    assert [field.name for field in dataclasses.fields(Derived)] == ["symbol", "bid", "side"]


@pytest.mark.parametrize("wrong", [Plainest, "Plain", lambda: None, 3])
def test_what_cannot_be_an_event_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        model(wrong)


# ---- properties


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(CLASSES))
def test_any_values_survive(symbol: str, bid: float, kind: Any) -> None:
    codec: Serde[Any] = serde_for(kind)
    value = kind(symbol=symbol, bid=bid)
    assert codec.decode(codec.encode(value)) == value


@given(st.binary() | st.text().map(str.encode), st.sampled_from([*CLASSES, Any, dict, str, int, list[int], Side]))
def test_hostile_bytes_give_serde_errors_only(data: bytes, kind: Any) -> None:
    codec: Serde[Any] = serde_for(kind)
    try:
        value = codec.decode(data)
    except SerdeError:
        return
    assert codec.decode(codec.encode(value)) == value


def test_pydantic_is_never_imported_for_others() -> None:
    code = (
        "import sys, dataclasses, comet.serde as serde\n"
        "@serde.model\nclass A:\n  x: int\n"
        "serde.serde_for(A).decode(b'{\"x\":1}')\n"
        "try: serde.serde_for(A).decode(b'{}')\nexcept serde.SerdeError: pass\n"
        "print('pydantic' in sys.modules, 'numpy' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["False", "False"]
