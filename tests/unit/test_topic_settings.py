"""The table of topic settings: its rows, values and their sources."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from comet.cli._topic_flags import markdown
from comet.errors import InvalidArgument
from comet.settings.topic import TOPIC_SETTINGS, Flush, SettingSource, TopicConfig, TopicDefaults, TopicSetting
from comet.v1 import types_pb2 as pb
from comet.wire.protobuf import config_from_pb, config_to_pb, settings_from_pb, settings_to_pb
from comet_broker.core.topic_config import SourcedConfig, altered, created, topic_defaults
from comet_gateway.routes.topics import setting_row
from tests.tidy.tree import ROOT

TOPIC, CLUSTER, BUILT_IN = SettingSource.TOPIC, SettingSource.CLUSTER, SettingSource.BUILT_IN
ROWS = pytest.mark.parametrize("row", TOPIC_SETTINGS.values(), ids=lambda row: row.name)
HOURLY = topic_defaults(TopicConfig(retention_ms=3_600_000), replicas=1)


# ---- a row


@ROWS
def test_a_row_is_whole(row: TopicSetting) -> None:
    row.check(row.default)
    assert row.parse(row.format(row.default)) == row.default
    assert row.label and row.about.endswith(".")
    assert bool(row.words) == (not row.unit) and (row.words or row.low < row.high)
    if row.default_replicated is not None:
        row.check(row.default_replicated)


@pytest.mark.parametrize(("replicas", "expected"), [(1, ("1", "2")), (3, ("2", None))])
def test_rest_names_a_default_for_more_replicas_only_if_it_differs(replicas: int, expected: tuple[str, str]) -> None:
    row = setting_row(TOPIC_SETTINGS["min_insync"], topic_defaults(TopicConfig(), replicas))
    assert (row.default, row.default_replicated) == expected


@ROWS
def test_values_out_of_bounds_are_refused(row: TopicSetting) -> None:
    def config(value: Any) -> TopicConfig:
        return TopicConfig(**{row.name: value})

    bounds = list(row.type) if issubclass(row.type, Enum) else [row.low, row.high]
    assert [getattr(config(value), row.name) for value in bounds] == bounds
    complaint = " or " if row.words else f"a whole number from {row.low} to {row.high}"
    for wrong in ("never", None) if row.words else (row.low - 1, row.high + 1, True, 1.5, "1"):
        with pytest.raises(InvalidArgument, match=f"{row.name} must be .*{complaint}"):
            config(wrong)


@ROWS
def test_the_protocol_has_a_field_that_holds_all_values(row: TopicSetting) -> None:
    for value in row.type if issubclass(row.type, Enum) else (row.low, row.high):
        assert settings_from_pb(settings_to_pb({row.name: value})) == {row.name: value}
    field = pb.TopicConfig.DESCRIPTOR.fields_by_name[row.name]
    assert row.words or (field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64)) == (row.bits == 64)


def test_the_protocol_keeps_a_configuration() -> None:
    config = TopicConfig(retention_ms=5, flush=Flush.OS)
    assert config_from_pb(config_to_pb(config)) == config
    assert config_from_pb(pb.TopicConfig()) == TopicConfig()
    with pytest.raises(InvalidArgument, match="flush must be always, interval or os, not 9"):
        settings_from_pb(pb.TopicConfig(flush=9))  # type: ignore[arg-type] # of a newer client
    with pytest.raises(InvalidArgument, match="unknown topic setting: 'retain'; use one of retention_ms"):
        settings_to_pb({"retain": 1})


def test_the_page_of_commands_shows_exactly_this_table() -> None:
    assert markdown() in (ROOT / "docs/cli.md").read_text(), f"docs/cli.md should hold this table:\n{markdown()}"


# ---- values and their sources


def test_defaults_are_the_brokers_and_say_so() -> None:
    assert HOURLY.config == TopicConfig(retention_ms=3_600_000)
    assert HOURLY.sources == {"retention_ms": CLUSTER}
    assert topic_defaults(TopicConfig(), replicas=1) == TopicDefaults()
    three = topic_defaults(TopicConfig(), replicas=3)
    assert (three.config.min_insync, three.source("min_insync")) == (2, BUILT_IN)


def test_a_new_topic_knows_what_was_asked_for() -> None:
    config, sources = created({"flush": Flush.OS, "segment_ms": 86_400_000}, HOURLY)
    assert config == TopicConfig(retention_ms=3_600_000, flush=Flush.OS)
    assert sources == {"retention_ms": CLUSTER, "flush": TOPIC, "segment_ms": TOPIC}  # though one is as the default


def test_what_is_altered_is_the_topics_own() -> None:
    before = created({}, HOURLY)
    assert altered(before, {"retention_ms": 3_600_000}, [], HOURLY) == (before.config, {"retention_ms": TOPIC})


def test_what_is_unset_gets_todays_default() -> None:
    before = created({"retention_ms": 5, "flush": Flush.OS}, TopicDefaults())
    assert altered(before, {}, ["retention_ms"], HOURLY) == (
        TopicConfig(retention_ms=3_600_000, flush=Flush.OS),
        {"retention_ms": CLUSTER, "flush": TOPIC},
    )
    assert altered(before, {}, ["retention_ms", "flush"], TopicDefaults()) == (TopicConfig(), {})


def test_a_default_of_the_cluster_that_changes_leaves_topics_alone() -> None:
    before = created({}, HOURLY)
    assert altered(before, {"segment_ms": 60_000}, [], TopicDefaults()) == (
        TopicConfig(retention_ms=3_600_000, segment_ms=60_000),
        {"retention_ms": CLUSTER, "segment_ms": TOPIC},
    )


def test_a_setting_is_set_or_unset() -> None:
    before = SourcedConfig(TopicConfig(), {})
    with pytest.raises(InvalidArgument, match="retention_ms is both set and unset"):
        altered(before, {"retention_ms": 5}, ["retention_ms"], HOURLY)
    with pytest.raises(InvalidArgument, match="unknown topic setting: 'retain'"):
        altered(before, {}, ["retain"], HOURLY)
    with pytest.raises(InvalidArgument, match="segment_ms must be"):
        altered(before, {"segment_ms": 1}, [], HOURLY)
