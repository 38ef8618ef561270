"""What a Spark source can be asked for, and how it says what is wrong with that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pydantic
import pytest

import comet
from comet.errors import InvalidArgument
from comet.spark import value_types
from comet.spark.connection_options import ConnectionOptions
from comet.spark.options import SourceOptions
from comet.spark.sink_options import SinkOptions


@comet.model
class Leg:
    symbol: str
    size: int


@dataclass
class Order:
    id: int
    price: float | None
    legs: list[Leg]
    tags: dict[str, bool]


class Level(msgspec.Struct, rename="camel"):
    bid_size: int


class Book(msgspec.Struct):
    symbol: str
    best: Level | None = msgspec.field(name="Best")
    levels: dict[str, list[Level]]
    legs: list[Leg]


class Aliased(pydantic.BaseModel):
    bid_size: int = pydantic.Field(alias="bidSize")
    ask_size: int = pydantic.Field(serialization_alias="askSize")


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    bid_size: int = pydantic.Field(alias="bidSize")


class Choices(pydantic.BaseModel):
    bid_size: int = pydantic.Field(validation_alias=pydantic.AliasChoices("bidSize", "bs"))


SNAPSHOT = {"subscribe": "a", "snapshot": "true"}


class Odd:
    value: complex


def test_names_are_those_of_kafkas_source_in_any_case() -> None:
    options = SourceOptions.parse(
        {
            "SUBSCRIBE": "quotes, trades",
            "startingoffsets": '{"quotes": {"0": 23, "1": -1, "2": -2}}',
            "maxOffsetsPerTrigger": "1000",
            "failondataloss": "FALSE",
            "checkpointLocation": "anywhere",
        }
    )
    assert options.topics == ("quotes", "trades")
    assert options.starting == {"quotes": {0: 23, 1: -1, 2: -2}}
    assert options.offsets_per_trigger == 1000
    assert not options.fail_on_loss
    assert SourceOptions.parse({"assign": '{"quotes": [2, 0, 2]}'}).assigned == {"quotes": (0, 2)}
    assert not SourceOptions.parse({"subscribePattern": "q.*", "isolation": "uncommitted"}).committed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give exactly one of"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "one of the options"),
        ({"subscribe": "a", "startingOffset": "earliest"}, "unknown option 'startingoffset'"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "a/b"}, "not a valid topic name"),
        ({"subscribe": "a", "startingOffsets": "newest"}, "not JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": 3}'}, "takes earliest, latest or"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"x": 3}}'}, "not the number of a partition"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-3 is not an offset"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": true}}'}, "True is not an offset"),
        ({"assign": '{"a": []}'}, "assign takes"),
        ({"subscribe": "a", "minPartitions": "0"}, "a number of at least 1"),
        ({"subscribe": "a", "minPartitions": "3", "maxPartitions": "2"}, "less than minPartitions"),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "true or false"),
        ({"subscribe": "a", "mode": "dropmalformed"}, "failfast or permissive"),
        ({"subscribePattern": "(a+)+$"}, "could take too long"),
        ({"subscribe": "a", "filter": "a >"}, "malformed filter, at character 4"),
        ({"subscribe": "a", "filter": "@timestamp > -15m"}, "filter has a time ago"),
        ({"subscribe": "a", "snapshot": "maybe"}, "true or false"),
        ({**SNAPSHOT, "startingOffsets": '{"a": {"0": 1}}'}, "a snapshot begins with the log"),
        ({**SNAPSHOT, "startingTimestamp": "1"}, "a snapshot begins with the log"),
        ({**SNAPSHOT, "isolation": "uncommitted"}, "a snapshot has committed records only"),
        ({**SNAPSHOT, "minPartitions": "4"}, "reads each partition in one task"),
        ({**SNAPSHOT, "pushdown": "true"}, "pushdown would cut the range"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        SourceOptions.parse(given)


def test_classes_of_events_become_columns() -> None:
    assert value_types.fields(Order) == (
        "`id` bigint, `price` double, `legs` array<struct<`symbol`: string, `size`: bigint>>, "
        "`tags` map<string, boolean>"
    )
    assert value_types.ddl("comet_demo.model:Quote").startswith("`symbol` string, `bid` double, `ask` double")
    assert value_types.ddl("symbol string, bid double") == "symbol string, bid double"


def test_columns_are_named_as_fields_and_found_as_json_names_them() -> None:
    level = {"bid_size": value_types.Named("bidSize", {})}
    assert value_types.ddl(f"{__name__}:Book").startswith(
        "`symbol` string, `best` struct<`bid_size`: bigint>, `levels` map"
    )
    assert value_types.names(f"{__name__}:Book") == {"best": ("Best", level), "levels": ("levels", level)}
    assert value_types.names(f"{__name__}:Aliased") == level
    assert value_types.names(f"{__name__}:Order") == value_types.names("bid_size int") == value_types.names("") == {}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("no_such_module:Quote", "cannot be imported"),
        ("comet_demo.model:NoSuchQuote", "cannot be imported"),
        (f"{__name__}:ByName", "ByName.bid_size may have several names in JSON"),
        (f"{__name__}:Choices", "give the option schema as DDL"),
        (f"{__name__}:Odd", "unsupported type"),
        ("comet.types:Acks", "not a model"),
    ],
)
def test_what_is_no_class_of_events_is_refused(event: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        value_types.ddl(event)


def test_source_and_sink_name_the_files_of_tls(tmp_path: Path) -> None:
    files = {"CA": "ca.pem", "cert": "~/app.pem", "key": "/etc/app.key"}
    source = SourceOptions.parse({"subscribe": "a", **files})
    sink = SinkOptions.parse({"topic": "b", **files})
    assert source.connection == sink.connection == ConnectionOptions(ca="ca.pem", cert="~/app.pem", key="/etc/app.key")
    assert SourceOptions.parse({"subscribe": "a"}).addresses() == "localhost:9092", "the environment names files"
    lonely = SourceOptions.parse({"subscribe": "a", "cert": str(tmp_path / "app.pem")})
    with pytest.raises(InvalidArgument, match=r"app\.pem was given without its key"):
        lonely.addresses()
