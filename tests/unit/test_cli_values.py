"""Sizes, durations and settings as people write them: what is read is what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.cli._values import format_rate, parse_settings
from comet.errors import InvalidArgument
from comet.settings.topic import TOPIC_SETTINGS, Flush, TopicConfig
from comet.units import format_duration_ms, format_exact_bytes, parse_bytes, parse_duration_ms


@given(st.integers(min_value=0, max_value=1 << 53))
def test_a_duration_reads_back_as_itself(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration_ms(duration_ms)) == duration_ms


@given(st.integers(min_value=0, max_value=1 << 53))
def test_a_size_reads_back_as_itself(size: int) -> None:
    assert parse_bytes(format_exact_bytes(size)) == size


def test_every_setting_of_a_topic_reads_back_as_itself() -> None:
    config = TopicConfig(retention_records=5, flush=Flush.ALWAYS, retention_ms=90_061_001)
    words = [f"{name}={row.format(getattr(config, name))}" for name, row in TOPIC_SETTINGS.items()]
    settings = parse_settings(words)
    assert settings == config.plain()


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("0", 0), ("1500", 1500), ("1.5h", 5_400_000), ("7d", 604_800_000), (" 2 w ", 1_209_600_000), ("250ms", 250)],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("64KiB", 65536), ("64K", 65536), ("1.5GB", 1_500_000_000), ("2 MB", 2_000_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "d", "-1d", "1y", "1d2h", "1e3", "inf", "١d", "0x10"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="invalid duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 QiB", "1,5GB", "1e9", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="invalid size"):
        parse_bytes(text)


@pytest.mark.parametrize("word", ["none", "unlimited", "forever", "-1", "NONE"])
def test_retention_may_be_without_limit(word: str) -> None:
    assert parse_settings([f"retention_bytes={word}"]) == {"retention_bytes": -1}


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("retention_ms", "name=value"),
        ("retention=7d", "unknown setting 'retention'"),
        ("flush=sometimes", "always, interval or os"),
        ("segment_ms=none", "invalid duration"),
        ("retention_records=many", "whole number"),
        ("retention_records=1.5", "whole number"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(word: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse_settings([word])


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="twice"):
        parse_settings(["flush=os", "flush=always"])


def test_dashes_and_grouped_digits_are_understood() -> None:
    assert parse_settings(["retention-records=1_000_000"]) == {"retention_records": 1_000_000}


def test_rates_for_the_eye() -> None:
    assert [format_rate(rate) for rate in (0, 999.6, 12_345, 4_120_000)] == ["0 /s", "1000 /s", "12.3 k/s", "4.12 M/s"]


def test_a_setting_that_is_nearly_one_is_named() -> None:
    with pytest.raises(InvalidArgument, match="did you mean retention_bytes"):
        parse_settings(["retention_byte=1"])
    with pytest.raises(InvalidArgument, match="consistent or available"):
        parse_settings(["consistency=eventual"])
