"""JSON fields as columns, and why a condition on one matches nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.filters.paths import parse_paths
from comet.filters.paths import text_of_path as name_of
from comet.filters.search_filters import MISSED_MAX
from comet_gateway.http.problems import Problem
from comet_gateway.search import fields
from comet_gateway.search.fields import Fields, suggested
from comet_gateway.search.filter_hints import hints
from comet_gateway.search.filters import filters_of
from tests.unit.gateway_world import batch_of

ORDER = b'{"id": 7, "price": 1.10, "big": 12345678901234567890, "user": {"name": "anna"}, "legs": [{"n": 1}, {"n": 2}]}'


def test_fields_keep_their_digits_and_their_kind() -> None:
    chosen = Fields.of('id, price,big,user.name,legs.n,legs[0].n,user,none,"a,b"')
    assert chosen.names == ("id", "price", "big", "user.name", "legs.n", "legs[0].n", "user", "none", '"a,b"')
    assert chosen.found(ORDER) == (
        ("number", "7"), ("number", "1.10"), ("number", "12345678901234567890"), ("text", "anna"), ("json", "[1,2]"),
        ("number", "1"), ("json", '{"name":"anna"}'), ("absent", ""), ("absent", ""),
    )  # fmt: skip
    assert Fields.of("a,b").found(b'{"a": null, "b": true}') == (("other", "null"), ("other", "true"))


@pytest.mark.parametrize(
    "value", [None, b"no json", b"\xff", b"[" * 100_000, b'{"a": ' + b" " * fields.DECODED_BYTES_MAX + b"1}"]
)
def test_other_values_and_large_ones_have_no_field(value: bytes | None) -> None:
    assert Fields.of("a").found(value) == (("absent", ""),)
    assert suggested([value]) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,", "at character 3: the name of a field is missing"),
        ("a b", "at character 3: a comma is missing"),
        ("a=1", "at character 2: a comma is missing"),
        (",".join(f"f{number}" for number in range(13)), "more than 12 fields"),
        ("x" * 1_501, "more than 1500 characters"),
    ],
)
def test_a_faulty_list_says_where(text: str, said: str) -> None:
    with pytest.raises(Problem, match=said) as raised:
        Fields.of(text)
    assert raised.value.more["parameter"] == "fields"


@given(st.lists(st.text(min_size=1, max_size=8) | st.integers(0, 99_999), min_size=1, max_size=4))
def test_the_name_of_a_path_is_parsed_to_the_same_path(parts: list[str | int]) -> None:
    path = tuple(part.encode(errors="replace").decode() if isinstance(part, str) else part for part in parts)
    assert parse_paths(f"{name_of(path)}, x") == [path, ("x",)]


def test_suggestions_are_two_levels_deep_and_bounded() -> None:
    assert suggested([ORDER, b'{"price": 1, "late": 2}']) == ("id", "price", "big", "user.name", "legs", "late")
    wide = json.dumps({f"f{number}": number for number in range(100)}).encode()
    assert len(suggested([wide])) == fields.SUGGESTED_MAX


def told(where: str, *values: bytes) -> str:
    filters = filters_of("", "", "", [where])
    batch = batch_of(0, range(len(values)), values)
    assert list(filters.found(batch, 0, len(values))) == []
    return hints(filters)


def test_a_hint_says_why_a_condition_matches_nothing() -> None:
    text, number = b'{"price": "n/a", "side": "buy"}', b'{"price": 12, "tags": ["x"], "up": true}'
    assert told("price>150", text) == "price holds texts such as “n/a”, and > 150 compares numbers."
    assert told("price>150", number) == ""
    assert told("prise>150", text) == "No record has the field prise: they have price, side."
    quoted = "price holds numbers such as 12: a literal in quotes is a text, so write it without."
    assert told('price="12"', number) == quoted
    assert told("price~2", number) == "price holds numbers such as 12: ~ looks for a part of texts, = compares."
    assert told("price>abc", number) == "price holds numbers such as 12, and abc is a text: > compares texts."
    assert told("up>1", number) == "up holds true or false, and > 1 compares numbers."
    assert told("price>1", b"plain text") == "The values are not JSON, so Filter finds no field in them: use Value."
    assert told("price=13", number) == ""


def test_the_sample_for_hints_is_bounded() -> None:
    filters = filters_of("", "", "", ["a=2"])
    large = b'{"a": 1, "b": "' + b"x" * 20_000 + b'"}'
    values = [large, *[b'{"a": 1}'] * 500]
    assert list(filters.found(batch_of(0, range(501), values), 0, 501)) == []
    assert {"a": 1} in filters.missed
    assert not any("b" in document for document in filters.missed)
    assert len(filters.missed) == MISSED_MAX
    assert hints(filters_of("a", "", "", [])) == ""
