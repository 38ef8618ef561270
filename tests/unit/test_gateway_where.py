"""What is asked of a record's JSON: the grammar, and what it means, beside a naive reading of the same."""

from __future__ import annotations

import json
import string
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.search.conditions import Malformed, Where, parse, parse_all
from comet_gateway.http.problems import Problem
from comet_gateway.search.filters import filters_of

NAMES = st.sampled_from(["a", "a", "b", 'odd "ü'])
TEXTS = st.one_of(
    st.sampled_from(
        ["", "1", "true", "null", "EUR", "eur", " x", '"'],
    ),
    st.text(max_size=4),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -1.0, 1e300]), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
PATHS = st.lists(st.one_of(NAMES, st.integers(0, 2)), min_size=1, max_size=3)
OPERATORS = ("=", "!=", ">", ">=", "<", "<=", "~", "!~")


def written(path: list[str | int], quote: bool) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        plain = part.isalpha() and part.isascii() and not quote
        text += ("." if text else "") + (part if plain else json.dumps(part))
    return text if isinstance(path[0], str) else "$" + text


def follow(value: Any, path: list[str | int]) -> list[Any]:
    """The same, as one would write it who has all the time in the world."""
    if not path:
        return [value]
    part, *rest = path
    if isinstance(part, int):
        return follow(value[part], rest) if isinstance(value, list) and part < len(value) else []
    if isinstance(value, dict):
        return follow(value[part], rest) if part in value else []
    if isinstance(value, list):
        return [end for one in value if isinstance(one, dict) and part in one for end in follow(one[part], rest)]
    return []


def read_number(text: str) -> float | None:
    with suppress(ValueError):
        value = json.loads(text) if text == text.strip() else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None


def fits(value: Any, operator: str, literal: str, quoted: bool) -> bool:
    try:
        number = None if quoted or literal != literal.strip() else json.loads(literal)
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        number = None
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if operator == "~":
        return isinstance(value, str) and literal.casefold() in value.casefold()
    if operator == "=":
        if isinstance(value, str):
            return value == literal
        if quoted:
            return False
        if numeric:
            return number is not None and value == number
        return (
            not isinstance(value, list | dict) and literal in ("true", "false", "null") and value is json.loads(literal)
        )
    left: Any
    right: Any
    if number is not None and isinstance(value, str):
        value = read_number(value)
        numeric = value is not None
    if number is None:
        left, right = value, literal
        if not isinstance(value, str):
            return False
    else:
        left, right = value, number
        if not numeric:
            return False
    return bool({">": left > right, ">=": left >= right, "<": left < right, "<=": left <= right}[operator])


@given(VALUES, PATHS, st.sampled_from(OPERATORS), TEXTS, st.booleans(), st.booleans())
def test_it_means_what_a_naive_reading_says(
    value: Any, path: list[str | int], operator: str, literal: str, quoted: bool, quote: bool
) -> None:
    shown = json.dumps(literal) if quoted else literal
    if not quoted and (
        not literal.strip()
        or literal.strip() != literal
        or literal[0] in '"=~!<>'
        or "&&" in literal
        or "\0" in literal
    ):
        return  # such texts have to be quoted
    found = [one for end in follow(value, path) for one in (end if isinstance(end, list) else [end])]
    any_fits = any(fits(one, operator.lstrip("!") if operator != "!=" else "=", literal, quoted) for one in found)
    expected = bool(follow(value, path)) and any_fits is not operator.startswith("!")
    assert parse(f"{written(path, quote)} {operator} {shown}").holds(value) is expected


DOCUMENT = {
    "price": 100.5, "n": 42, "text": "42", "ok": True, "none": None, "note": "Äpfel", "day": "2026-01-31",
    "tags": ["urgent", "Late"], "legs": [{"size": 5}, {"size": 7}, {"other": 1}], "": 1, "exists": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("price>100", True), ("price>100.5", False), ("price<=100.5", True), ("price>abc", False), ("price~1", False),
        ("n=42", True), ("n=42.0", True), ("n!=42", False), ('n="42"', False), ("text=42", True), ('text="42"', True),
        ("text>5", True), ("text>42", False), ("text<=42.0", True), ("note>5", False), ("day>5", False),
        ("note!=this and&that", True), ('text<"5"', True), ("ok=true", True), ('ok="true"', False), ("ok=1", False),
        ("ok>0", False),
        ("none=null", True), ("none!=null", False), ("exists(none)", True), ("!exists(gone)", True), ("gone!=1", False),
        ("note~äPF", True), ("note!~birne", True), ("note=äpfel", False), ("day>=2026-01-30", True),
        ("tags=urgent", True), ("tags!=urgent", False), ("tags!=other", True), ("tags~LAT", True),
        ("tags[1]=Late", True),
        ("tags[9]=Late", False), ("legs.size=7", True), ("legs.size>7", False), ("legs[0].size=7", False),
        ("exists(legs.other)", True), ("legs[2].other=1", True), ('"".x=1', False), ('""=1', True), ("exists=3", True),
        ("$.n=42", True), ("exists($)", True),
    ],
)  # fmt: skip
def test_it_means_what_is_written(text: str, holds: bool) -> None:
    assert parse(text).holds(DOCUMENT) is holds


@given(VALUES, PATHS, st.booleans())
def test_exists_says_whether_there_is_one(value: Any, path: list[str | int], negated: bool) -> None:
    text = f"{'!' if negated else ''}exists({written(path, True)})"
    assert parse(text).holds(value) is (bool(follow(value, path)) is not negated)


@given(st.text(alphabet=string.printable + "ü", max_size=30))
def test_whatever_is_written_is_parsed_or_refused_with_a_place(text: str) -> None:
    with suppress(Malformed):
        parse(text)
        return
    with pytest.raises(Malformed) as caught:
        parse(text)
    assert 0 <= caught.value.position <= len(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0), ("price", 5), ("price>", 6), ("price > ", 8), (".a=1", 0), ("a.=1", 2), ("a[x]=1", 2), ("a[0=1", 3),
        ("exists(a", 8), ("exists(a) b", 10), ('a="x', 2), ('a="x" y', 6), ("a b=1", 2), ('a="\\q"', 2),
        ("a" + ".a" * 16 + "=1", 31), ("x" * 501, 500), ("a=1 && b", 8), ("a=1&&", 5), ("&&", 0),
        ("price >> 3 or", 7), ("a==1", 2), ("a=!b", 2), ("a=1 or b=2", 4), ("a=1 AND b", 9), ("a=1 and", 7),
        ("a=1 and and b=1", 7),
        ("a=x || b=y", 4), ("a=or", 2),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, position: int) -> None:
    with pytest.raises(Malformed) as caught:
        parse_all(text)
    assert caught.value.position == position
    with pytest.raises(Problem) as refused:
        filters_of("", "", "", [text])
    assert (refused.value.code, refused.value.more["position"]) == ("MALFORMED_WHERE", position)
    assert f"at character {position + 1}" in refused.value.detail


def test_a_literal_is_read_as_what_it_looks_like() -> None:
    assert parse("a.b[0]>=1.5e3") == Where(("a", "b", 0), ">=", literal="1.5e3", number=1500.0)
    assert parse('a="1"') == Where(("a",), "=", literal="1", quoted=True)
    assert parse("a != New York ") == Where(("a",), "=", negated=True, literal="New York")
    assert parse("$.a=1").path == ("a",)
    assert parse("$=1").path == ()
    assert parse("$[1]=x").path == (1,)


def test_several_conditions_stand_in_one_line() -> None:
    assert parse_all('a=1 && b="x && y"&&exists(c)') == [
        Where(("a",), "=", literal="1", number=1),
        Where(("b",), "=", literal="x && y", quoted=True),
        Where(("c",), "exists"),
    ]
    assert parse_all('a > 1 and b="x and y" AND exists(c)\n and\td=1') == [
        Where(("a",), ">", literal="1", number=1),
        Where(("b",), "=", literal="x and y", quoted=True),
        Where(("c",), "exists"),
        Where(("d",), "=", literal="1", number=1),
    ]
    assert parse_all("and=1") == [Where(("and",), "=", literal="1", number=1)]
    assert parse_all("a=band andy") == [Where(("a",), "=", literal="band andy")]
    assert parse_all("a=x & y") == [Where(("a",), "=", literal="x & y")]
    assert len(parse_all(" && ".join(['a="&&"'] * 40))) == 40
    with pytest.raises(Malformed):
        parse_all('a="\\" && ' * 40 + '"')


def test_lists_and_documents_without_end_are_looked_at_only_so_far() -> None:
    wide = {"a": [{"b": [0] * 5_000}] * 5_000}
    assert not parse("a.b=1").holds(wide)
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    assert not parse("a.a.a=1").holds(deep)
