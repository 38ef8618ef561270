"""The language of filters: what is written, what it means, and where a mistake is. See docs/filters.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from comet import records
from comet.errors import MalformedFilter
from comet.filters import parse
from comet.filters.nodes import Comparison, JsonField, Literal, Node, Not, Root
from comet.filters.parser import CHARS_MAX, DEPTH_MAX, LITERALS_MAX, NODES_MAX
from comet.values.record import RecordBatch
from comet_gateway.http.problems import Problem
from comet_gateway.search.filters import filters_of

DOCUMENT = {
    "price": 100.5, "n": 42, "text": "42", "ok": True, "none": None, "note": "Äpfel", "day": "2026-01-31",
    "tags": ["urgent", "Late"], "legs": [{"size": 5}, {"size": 7}, {"other": 1}], "": 1, "exists": 3, "in": 1,
    "ticks": 9007199254740993, "@key": "field", "it's": 1, "empty": [], "mixed": [1, "a"],
}  # fmt: skip
TIME_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


def node(text: str) -> Node:
    return parse(text, now_us=TIME_US).node


def holds(text: str, document: Any = DOCUMENT, **more: Any) -> bool:
    value = document if document is None or isinstance(document, bytes) else json.dumps(document).encode()
    given: Any = {"keys": [b"EUR"], "timestamps": TIME_US, "headers": [[("source", b"demo"), ("bad", b"\xff")]]} | more
    batch = records.decode(b"".join(records.encode([value], **given)))
    return bool(parse(text, now_us=TIME_US).rows(RecordBatch("topic", 3, batch)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price>100", True), ("price>100.5", False), ("price<=100.5", True), ("price>abc", False), ("price~1", False),
        ("n=42", True), ("n=42.0", True), ("n!=42", False), ('n="42"', False), ("text=42", True), ('text="42"', True),
        ("text>5", True), ("text>42", False), ("text<=42.0", True), ("note>5", False), ("day>5", False),
        ("note!=this and&that", True), ('text<"5"', True), ("ok=true", True), ('ok="true"', False), ("ok=1", False),
        ("ok>0", False), ("none=null", True), ("none!=null", False), ("exists(none)", True), ("!exists(gone)", True),
        ("gone!=1", False), ("note~äPF", True), ("note!~birne", True), ("note=äpfel", False),
        ("day>=2026-01-30", True), ("tags=urgent", True), ("tags!=urgent", False), ("tags!=other", True),
        ("tags~LAT", True), ("tags[1]=Late", True), ("tags[9]=Late", False), ("legs.size=7", True),
        ("legs.size>7", False), ("legs[0].size=7", False), ("exists(legs.other)", True), ("legs[2].other=1", True),
        ('"".x=1', False), ('""=1', True), ("exists=3", True), ("$.n=42", True), ("exists($)", True),
        # joined
        ("n=1 || n=42", True), ("n=1 or price>100 and ok=true", True), ("(n=1 or price>100) and ok=false", False),
        ("!(n=1)", True), ("!(gone=1)", False), ("!(gone=1 && n=1)", True), ("!(gone=1 || n=42)", False),
        ("!!exists(n)", True), ("!(!(n = 42))", True),
        # sets, prefixes, suffixes
        ("n in (1, 42)", True), ("n in [1, 2]", False), ('note in (x, "Äpfel")', True), ("text in (42)", True),
        ("!(n in (1, 2))", True), ("!(gone in (1))", False), ("in in (1)", True), ("day ^= 2026-01", True),
        ("note ^= äp", False), ("note $= fel", True), ("n ^= 4", False), ("day$=31", True),
        # three values: another type is unknown, and so is its contrary
        ('n!="42"', False), ("n!=abc", False), ("ok!=1", False), ("n!~4", False), ("!(n ^= 4)", False),
        ("n!=null", True), ("none!=5", False), ("mixed!=b", False), ("mixed=a", True), ("empty!=1", True),
        # whole numbers are exact
        ("ticks=9007199254740993", True), ("ticks=9007199254740992", False), ("ticks>9007199254740992", True),
        # CEL's spelling
        ("n == 42", True), ("note == 'Äpfel'", True), ("has(n)", True), ("!has(gone)", True),
        ("day.startsWith('2026')", True), ('!day.startsWith("2026")', False), ('note.endsWith("el")', True),
        ("tags.contains('urg')", True), ("\"it's\" == 1", True), ("it's=1", True), ("note=='it\\'s'", False),
        # a field, not a part of the record
        ('"@key" = field', True),
        # the record beside its value
        ("@key = EUR", True), ("@key ^= E && @key $= R", True), ("@key in (USD, EUR)", True), ("@key != USD", True),
        ("exists(@key)", True), ("@header.source = demo", True), ("@header.source != demo", False),
        ("exists(@header.source)", True), ("!exists(@header.none)", True), ("@header.none != x", False),
        ('@header."source" ~ DEM', True), ("@header.bad = x", False), ("@header.bad != x", False),
        ("@partition = 3", True), ("@partition in (1, 2)", False), ("@offset = 0", True), ("@offset < 0", False),
        ("@size > 10", True), ("@size < 4", False), ("@schema = 1", False), ("@schema != 1", False),
        ("@tombstone", False), ("!@tombstone", True), ("@tombstone = false", True), ("@key.startsWith('EU')", True),
        ("@timestamp = 2026-01-01T00:00:00Z", True), ("@timestamp > -15m", True), ("@timestamp <= -15m", False),
        ("@timestamp >= 1767225600000000", True), ("@timestamp in (-15m, 2026-01-01T00:00:00Z)", True),
    ],
)  # fmt: skip
def test_it_means_what_is_written(text: str, expected: bool) -> None:
    assert holds(text) is expected
    again = parse(text, now_us=TIME_US).text
    assert node(again) == node(text)
    assert holds(again) is expected


def test_a_value_that_is_no_json_matches_only_by_what_is_beside_it() -> None:
    for value in (b"plain", b"", b"{", None):
        assert not holds("exists(a)", value)
        assert not holds("!exists(a)", value)
        assert not holds("a != 1", value)
        assert holds("a = 1 || @key = EUR", value)
    assert holds("@tombstone && @key = EUR", None)
    assert not holds("@tombstone", b"")


def test_records_without_a_key_or_headers() -> None:
    assert not holds("@key != x", keys=None)
    assert not holds("exists(@key)", keys=None)
    assert holds("!exists(@key) && !exists(@header.x)", keys=None, headers=None)
    assert not holds("@key != x || @key = x", keys=[b"\xff"])


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0), ("price", 5), ("price>", 6), ("price > ", 8), (".a=1", 0), ("a.=1", 2), ("a[x]=1", 2), ("a[0=1", 3),
        ("exists(a", 8), ("exists(a) b", 10), ('a="x', 2), ('a="x" y', 6), ("a b=1", 2), ('a="\\q"', 2),
        ("a" + ".a" * 16 + "=1", 31), ("a=1 && b", 8), ("a=1&&", 5), ("&&", 0), ("price >> 3 or", 7), ("a=!b", 2),
        ("a=1 AND b", 9), ("a=1 and", 7), ("a=or", 2), ("a=1 or b", 8), ("a=x || b", 8), ("a === 1", 4),
        ("(a=1", 4), ("a=1 && (b=2", 11), ("(a=1))", 5), ("!a=1", 1), ("!(a=1) b", 7), ("a in x", 5), ("a in (x", 7),
        ("a in ()", 6), ("a in (b c", 9), ("@nope=1", 0), ("@header=1", 7), ("@header.a.b=1", 9),
        ("@offset=x", 0), ("@offset ~ 1", 0), ("@offset=1.5", 0), ("@timestamp>soon", 11), ("@tombstone=1", 0),
        ("@tombstone > true", 0), ("exists(@offset)", 7), ("a.startsWith(b)", 13), ("a.startsWith('b'", 16),
        ("@key.x=1", 4), ("a=1 b=2 && (", 12), ("x" * (CHARS_MAX + 1), CHARS_MAX), ("a='b", 2),
        ('a="\\ud800"', 2), ("a=\ud800", 2),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(text: str, position: int) -> None:
    with pytest.raises(MalformedFilter) as caught:
        node(text)
    assert int(caught.value.details["position"]) == position, caught.value
    assert f"at character {position + 1}: " in str(caught.value)
    with pytest.raises(Problem) as refused:
        filters_of("", "", "", [text])
    assert (refused.value.code, refused.value.more["position"]) == ("MALFORMED_FILTER", position)
    assert f"at character {position + 1}: " in refused.value.detail


def test_limits_are_told() -> None:
    assert node("(" * DEPTH_MAX + "a=1" + ")" * DEPTH_MAX) == node("a=1")
    node(" && ".join(["a=1"] * NODES_MAX))
    node(f"a in ({', '.join(['1'] * LITERALS_MAX)})")
    for text, said in (
        ("(" * (DEPTH_MAX + 1) + "a=1" + ")" * (DEPTH_MAX + 1), "more than 16 parentheses"),
        ("!" * (DEPTH_MAX + 1) + "exists(a)", "more than 16 parentheses"),
        (" && ".join(["a=1"] * (NODES_MAX + 1)), "more than 64 conditions"),
        (f"a in ({', '.join(['1'] * (LITERALS_MAX + 1))})", "more than 256 literals"),
        ("a=" + "x" * CHARS_MAX, "more than 2000 characters"),
        ("a" + ".a" * 16 + "=1", "more than 16 parts"),
    ):
        with pytest.raises(MalformedFilter, match=said):
            node(text)


def test_a_literal_is_read_as_what_it_looks_like() -> None:
    assert node("a.b[0]>=1.5e3") == Comparison(JsonField(("a", "b", 0)), ">=", (Literal("1.5e3", bare=True),))
    assert node('a="1"') == Comparison(JsonField(("a",)), "=", (Literal("1"),))
    assert node("a != New York ") == Not(Comparison(JsonField(("a",)), "=", (Literal("New York"),)))
    assert node("a=x)") == Comparison(JsonField(("a",)), "=", (Literal("x)"),))
    assert node("(a=f(x))") == Comparison(JsonField(("a",)), "=", (Literal("f(x)"),))
    assert node('a=5" pipe') == Comparison(JsonField(("a",)), "=", (Literal('5" pipe'),))
    assert node('a=x "b && c" d') == Comparison(JsonField(("a",)), "=", (Literal('x "b && c" d'),))
    assert node("$.a=1") == node("a=1")
    assert node("$=1") == Comparison(JsonField(()), "=", (Literal("1", bare=True),))
    assert node("$[1]=x") == Comparison(JsonField((1,)), "=", (Literal("x"),))
    assert node("a$=x") == Comparison(JsonField(("a",)), "$=", (Literal("x"),))
    assert node("@timestamp > -1h") == Comparison(
        Root("timestamp"), ">", (Literal(str(TIME_US - 3_600_000_000), bare=True),)
    )


def test_the_canonical_text() -> None:
    for text, canonical in (
        ('a=1 and b="x y"and(c=2||d~e)', 'a = 1 && b = "x y" && (c = 2 || d ~ "e")'),
        ("a==1 or b!=2 and !has(c)", "a = 1 || b != 2 && !exists(c)"),
        ("!(a>1)", "!(a > 1)"),
        ("((a=1 && b=1) && c=1)", "a = 1 && b = 1 && c = 1"),
        ("x in ['a',2] && !@tombstone", 'x in ("a", 2) && @tombstone != true'),
        ('@header."x.y".startsWith("a")', '@header."x.y" ^= "a"'),
    ):
        assert str(node(text)) == canonical


def test_several_conditions_stand_in_one_line() -> None:
    assert str(node('a > 1 and b="x and y" AND exists(c)\n and\td=1')) == 'a > 1 && b = "x and y" && exists(c) && d = 1'
    assert node("and=1") == Comparison(JsonField(("and",)), "=", (Literal("1", bare=True),))
    assert node("a=band andy") == Comparison(JsonField(("a",)), "=", (Literal("band andy"),))
    assert node("a=x & y") == Comparison(JsonField(("a",)), "=", (Literal("x & y"),))


def test_lists_and_documents_without_end_are_looked_at_only_so_far() -> None:
    wide = {"a": [{"b": [0] * 1_500}] * 1_500}
    assert not holds("a.b=1", wide)
    assert not holds("a=1", {"a": [0] * 1_000 + [1]})
    assert not holds("$.b.c=1", [{"b": [0]}] * 1_000 + [{"b": {"c": 1}}])
    assert holds("a=1", {"a": [0] * 999 + [1]})


def test_explain_says_what_is_read_and_needed() -> None:
    assert parse('symbol = "ACME" && @key ^= E && bid > 1 && !(b = x)', now_us=0).explain() == {
        "filter": 'symbol = "ACME" && @key ^= "E" && bid > 1 && b != "x"',
        "columns": ["value", "key"],
        "literals": [['"ACME"']],
    }
    assert parse('symbol = "ACME" || b = x', now_us=0).explain()["literals"] == []
