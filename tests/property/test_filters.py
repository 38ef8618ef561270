"""Filters: four ways to evaluate one agree on random filters and random bytes, and its canonical text is the same
filter. What decoders disagree on stands among the values on purpose."""

from __future__ import annotations

import json
import random
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from comet import records
from comet.errors import MalformedFilter
from comet.filters import Filter, all_of, parse
from comet.filters.evaluate import FilterPlan
from comet.filters.nodes import NUMBERS, Comparison, JsonField, Literal, Node, Not, Root, joined
from comet.filters.parser import CHARS_MAX
from comet.values.record import RecordBatch
from tests.property.filter_model import Seen, says

NAMES = st.sampled_from(["a", "b", "c", 'odd "ü', "and", "in", "exists", "@key", "$", "", "\\", "x'y", "d.e"])
TEXTS = st.one_of(
    st.sampled_from(
        ["", "1", "true", "null", "EUR", "eur", " x", '"', "ACME", "ACM", "a && b", "it's", "\\", "ü", "or"]
    ),
    st.text(st.characters(codec="utf-8"), max_size=4),
)
NUMBER_TEXTS = st.sampled_from(
    ["0", "-0", "1", "2", "1.0", "1.5", "-3", "1e3", "1e400", "9007199254740993", "9007199254740992", "2e-9",
     "18446744073709551617", "-9223372036854775809", "9" * 330]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -1.0, 1e300, 2**53 + 1, 2**64 + 1]), TEXTS,
    NUMBER_TEXTS,
)  # fmt: skip
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
OBJECTS = st.dictionaries(NAMES, DOCUMENTS, max_size=4)
# Decoders disagree on these: a field that is skipped, and one that is read.
TRAPS = (
    b'{"a":1,"zz":1e400}', b'{"a":1e400,"b":2}', b'{"zz":"\\ud800","a":1}', b'{"a":"\\ud800x","b":1}', b'{"a":NaN}',
    b'{"zz":NaN,"a":1}', b'{"zz":"\xff","a":1}', b'{"a":"\xff"}', b'{"\xff":1,"a":1}', b'{"a":18446744073709551617}',
    b'{"a":' + b"9" * 330 + b"}", b'{"a":' + b"9" * 4_400 + b',"b":1}', b'{"zz":' + b"9" * 4_400 + b',"a":1}',
    b'{"a":1,"zz":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 100_000, b'{"\\u0061":1}', b'{"a":2,"a":1}',
    b'{"a":1,"\\u0061":2}', b'{"a":"\\u0041CME"}', b'{"a":"ACME","zz":"\\n"}', b"[1,2]", b'[{"a":1},{"a":2}]', b"1",
    b'"ACME"', b"null", b"", b"{", b'{"a":1}x', b'{"a":1,}', b'\xef\xbb\xbf{"a":1}', b' \n{"a" : "ACME"}\t',
    b'{"a":[]}', b'{"a":[1,"ACME",null]}', b'{"a":{"b":[{"c":1}]}}', b'{"a":01}', b'{"zz":01,"a":1}', b'{"a":-}',
    b"\x00", '{"ü":1,"a":"ü"}'.encode(), '{"a":1,"b":2}'.encode("utf-16"), b'{"a":true}', b'{"a":null}',
    b'{"a":1e400,"zz":"\\ud800"}', b'{"a":0.1e-500}', b'{"a":-0}',
)  # fmt: skip


@st.composite
def json_bytes(draw: st.DrawFn) -> bytes:
    document = draw(st.one_of(OBJECTS, OBJECTS, DOCUMENTS))
    text = json.dumps(
        document, ensure_ascii=draw(st.booleans()), separators=draw(st.sampled_from([(",", ":"), (" , ", " : ")]))
    )
    return text.encode()


VALUES = st.one_of(st.none(), st.sampled_from(TRAPS), json_bytes(), json_bytes(), st.binary(max_size=6))
KEYS = st.one_of(st.none(), st.sampled_from([b"ACME", b"1", b"\xff", b"", "ü".encode(), b"null"]))
HEADERS = st.lists(
    st.tuples(st.sampled_from(["h", "x.y"]), st.sampled_from([b"ACME", b"1", b"\xff", b"2"])), max_size=3
)
RECORDS = st.builds(
    Seen, VALUES, KEYS, HEADERS.map(tuple), st.sampled_from([0, 5, 1_700_000_000_000_000]),
    offset=st.just(0), partition=st.just(0), schema=st.just(0),
)  # fmt: skip

PATHS = st.lists(st.one_of(NAMES, NAMES, st.integers(0, 2)), max_size=3).map(tuple)
BARE = st.builds(Literal, st.one_of(NUMBER_TEXTS, st.sampled_from(["true", "false", "null"])), st.just(True))
LITERALS = st.one_of(st.builds(Literal, TEXTS), BARE)
INTEGERS = st.sampled_from(["0", "1", "5", "12", "1700000000000000"]).map(lambda text: Literal(text, bare=True))
OPERANDS: Any = st.one_of(
    st.builds(JsonField, PATHS), st.builds(JsonField, st.just(("a",))), st.just(Root("key")),
    st.builds(Root, st.just("header"), st.sampled_from(["h", "x.y", "none"])),
)  # fmt: skip


def sensible(operator: str, literal: Literal) -> Literal:
    """As the parser makes it: texts but for = and numbers that are ordered."""
    if operator in ("~", "^=", "$=") or literal.number is None:
        return Literal(literal.text)
    return literal


TESTS: Any = st.one_of(
    st.builds(Comparison, OPERANDS, st.just("exists")),
    st.builds(Comparison, OPERANDS, st.just("="), st.tuples(LITERALS)),
    st.builds(Comparison, OPERANDS, st.just("in"), st.lists(LITERALS, min_size=1, max_size=3).map(tuple)),
    st.builds(
        lambda operand, sign, literal: Comparison(operand, sign, (sensible(sign, literal),)),
        OPERANDS, st.sampled_from([">", ">=", "<", "<=", "~", "^=", "$="]), LITERALS,
    ),
    st.builds(
        Comparison, st.sampled_from(NUMBERS).map(Root), st.sampled_from(["=", ">", ">=", "<", "<=", "in"]),
        st.tuples(INTEGERS),
    ),
    st.builds(
        Comparison, st.just(Root("tombstone")), st.just("="),
        st.sampled_from(["true", "false"]).map(lambda text: (Literal(text, bare=True),)),
    ),
)  # fmt: skip
FILTERS: st.SearchStrategy[Node] = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(joined, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)


def batch_of(seen: list[Seen], schema: int = 0) -> RecordBatch[bytes]:
    raw = b"".join(
        records.encode(
            [one.value for one in seen],
            keys=[one.key for one in seen],
            headers=[list(one.headers) for one in seen],
            timestamps=[one.timestamp_us for one in seen],
            schema_id=schema,
        )
    )
    batch = records.decode(raw)
    batch.check()
    return RecordBatch("topic", 0, batch)


def placed(seen: list[Seen]) -> list[Seen]:
    return [one._replace(offset=at) for at, one in enumerate(seen)]


@given(FILTERS, st.lists(RECORDS, min_size=1, max_size=12), st.sampled_from([0, 5]))
def test_a_batch_and_a_naive_reading_agree(node: Node, seen: list[Seen], schema: int) -> None:
    seen = [one._replace(schema=schema) for one in placed(seen)]
    expected = [at for at, one in enumerate(seen) if says(node, one) is True]
    assert list(Filter(node).rows(batch_of(seen, schema))) == expected


@given(FILTERS, st.lists(RECORDS, min_size=1, max_size=6))
def test_whole_documents_and_projected_ones_agree(node: Node, seen: list[Seen]) -> None:
    whole = FilterPlan(Not(Not(joined("and", [node, Comparison(JsonField(()), "exists")]))))
    assert whole.projection is None
    projected = Filter(joined("and", [node, Not(Comparison(JsonField(("a",)), "=", (Literal("no such"),)))]))
    batch = batch_of(seen)
    both = set(Filter(node).rows(batch))
    assert set(whole.rows(batch, range(len(seen)))) == {
        at for at in both if says(Comparison(JsonField(()), "exists"), seen[at])
    }
    assert set(projected.rows(batch)) <= both


@pytest.mark.parametrize("value", TRAPS, ids=lambda value: repr(value[:40]))
def test_each_trap_says_what_the_naive_reading_says(value: bytes) -> None:
    beside = [Seen(b'{"a":1}'), Seen(b'{"zz":1}')]
    for path in ("a", "b", "zz", "a.b.c", "$", "$[0]"):
        for condition in (
            f"{path} = 1", f"{path} != 1", f"{path} > 0", f"exists({path})", f"!exists({path})", f'{path} = "ACME"',
            f"a = 1 || exists({path})",
        ):  # fmt: skip
            one = parse(condition, now_us=0)
            for some in ([Seen(value)], [Seen(value), *beside], [beside[0], Seen(value), *beside]):
                seen = placed(some)
                expected = [at for at, each in enumerate(seen) if says(one.node, each) is True]
                assert list(one.rows(batch_of(seen))) == expected, condition


# Values and literals of each type, for a table of all comparisons of them.
CELLS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.0, 1.5, 2**53, 2**53 + 1, 2**64 + 1, "", "1", "1.0", "true", "null", "ACME", "acme",
    "ACME ", "ACMES", "straße", "STRASSE", "9007199254740993", "1e3", "9" * 501, [], [1], ["ACME"], ["ACME", 1], [None],
    [2**53 + 1], [["ACME"]], {}, {"b": 1}, [{"b": 1}, {"c": 2}], {"b": None}, {"b": "ACME"}, {"b": [1, "x"]},
)  # fmt: skip
WORDS = ("", "1", "true", "ACME", "A", "E", "strasse", "null", "acme", "9" * 501)
BARE_WORDS = ("null", "true", "false", "0", "1", "1.5", "9007199254740992", "9007199254740993", "18446744073709551617")
CELL_LITERALS = [*map(Literal, WORDS), *(Literal(text, bare=True) for text in BARE_WORDS)]
ROWS_BESIDE = (b'{"a":1e400}', b"text", None, b'{"zz":"\\n"}')  # each in a batch with the others: whole documents


@pytest.mark.parametrize("operator", ["=", "in", ">", ">=", "<", "<=", "~", "^=", "$=", "exists"])
@pytest.mark.parametrize("beside", [False, True])
def test_each_comparison_of_each_type_says_what_the_naive_reading_says(operator: str, beside: bool) -> None:
    values: list[bytes | None] = [b"{}", *(json.dumps({"a": cell}).encode() for cell in CELLS)]
    values += ROWS_BESIDE if beside else ()
    keys = [None, b"", b"ACME", b"1", b"\xff", "ACMÉ".encode()]
    headers = [(), (("h", b""),), (("h", b"\xff"), ("h", b"ACME")), (("h", b"1"), ("h", b"x")), (("x", b"ACME"),)]
    seen = placed([
        Seen(value, keys[at % len(keys)], headers[at % len(headers)]) for at, value in enumerate(values)
    ])  # fmt: skip
    batch = batch_of(seen)
    operands: list[Any] = [
        JsonField(("a",)),
        JsonField(("a", "b")),
        JsonField(("a", 0)),
        Root("key"),
        Root("header", "h"),
    ]
    for operand in operands:
        for literal in CELL_LITERALS:
            words = () if operator == "exists" else (sensible(operator, literal),)
            if operator == "in":
                words = (Literal("none"), *words)
            one = Comparison(operand, operator, words)
            for node in (one, Not(one), joined("and", [one, Comparison(JsonField(("a",)), "exists")])):
                expected = [row.offset for row in seen if says(node, row) is True]
                assert list(Filter(node).rows(batch)) == expected, node
                some = range(1, len(seen), 3)
                assert list(Filter(node).rows(batch, some)) == [row for row in expected if row in some], node


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("schema", [0, 1, 5])
def test_each_comparison_of_a_number_of_the_record_says_what_the_naive_reading_says(number: str, schema: int) -> None:
    seen = placed([Seen(b"1" * at, timestamp_us=at, schema=schema) for at in range(8)])
    batch = batch_of(seen, schema)
    for operator in ("=", "in", ">", ">=", "<", "<="):
        for text in ("0", "1", "5"):
            words = (Literal("7", bare=True), Literal(text, bare=True))
            one = Comparison(Root(number), operator, words if operator == "in" else words[1:])
            for node in (one, Not(one)):
                assert list(Filter(node).rows(batch)) == [row.offset for row in seen if says(node, row) is True], node


PREFILTERED = [
    b'{"a":"ACME"}', b'{"a":"ACM', b'E"}', b'"ACME"', b'"ACME', b'{"b":"ACME"}', b'{"a":"ACMES"}',
    b'{"a":"\\u0041CME"}', b'{"a":"XACME"}', b'"', b"AC", b'ME"', b"{}", b'{"a":["ACME"]}',
]  # fmt: skip


@given(
    st.sampled_from([("a",), ()]),
    st.sampled_from(["=", "^=", "$=", "in"]),
    st.lists(st.sampled_from(PREFILTERED), min_size=1, max_size=40),
)
@example((), "=", [b'"ACME', b'"ACME"'])
@example(("a",), "=", [b'"AC', b'ME"', b'{"a":"ACME"}'])
def test_the_prefilter_drops_no_match(path: tuple[str], operator: str, values: list[bytes]) -> None:
    literals = (Literal("ACME"), Literal("none")) if operator == "in" else (Literal("ACME"),)
    node = Comparison(JsonField(path), operator, literals)
    values = values + [b"{}"] * 4 * len(values)  # few enough matches for the prefilter to be used
    seen = placed([Seen(value) for value in values])
    assert FilterPlan(node).literals
    assert list(Filter(node).rows(batch_of(seen))) == [at for at, one in enumerate(seen) if says(node, one)]


@pytest.mark.parametrize(
    ("operator", "literals"),
    [("=", ["ACME"]), ("^=", ["ACME"]), ("$=", ["ACME"]), ("in", ["none", "ACME"]), ("in", ["ACME", 5])],
)
@pytest.mark.parametrize(("since", "left_out"), [(0, 0), (3, 0), (130, 0), (0, 5), (130, 5)])
def test_the_prefilter_of_many_rows_drops_no_match(
    operator: str, literals: list[str | int], since: int, left_out: int
) -> None:
    """The prefilter is used if few rows match: here only the last ones do. A part of a batch is filtered as well."""
    found = tuple(Literal(str(one), bare=isinstance(one, int)) for one in literals)
    plain = [value for value in PREFILTERED if b"\\" not in value]  # or the prefilter is not used
    ends = [*plain, b'{"a":5}', b'{"a":"none"}', b'{"a":"ACME"}', b'{"a":"XACMES"}', b'{"a":""}']
    seen = placed([Seen(b"{}")] * 32 * len(ends) + [Seen(value) for value in ends] * 2)
    whole = Comparison(JsonField(("a",)), operator, found)
    late = Comparison(Root("offset"), ">", (Literal(str(len(seen) - len(ends)), bare=True),))
    end = len(seen) - left_out
    before = batch_of(seen).before(end)
    part = None if before is None else before.after(since)
    assert part is not None
    for node in (whole, joined("and", [late, whole]), Not(joined("or", [Not(late), Not(whole)]))):
        expected = [one.offset for one in seen[since:end] if says(node, one)]
        assert expected
        assert [part.offsets[row] for row in Filter(node).rows(part)] == expected


def test_a_record_without_a_key_has_no_empty_one_behind_another_comparison_either() -> None:
    batch = batch_of(placed([Seen(b"1", None), Seen(b"1", b""), Seen(b"1", None)]))
    assert list(parse('@offset >= 0 && @key = ""', now_us=0).rows(batch)) == [1]
    assert list(parse('@offset >= 1 && @key = ""', now_us=0).rows(batch)) == [1]


@given(FILTERS, st.lists(RECORDS, min_size=1, max_size=8), st.data())
def test_some_rows_are_those_of_all(node: Node, seen: list[Seen], data: st.DataObject) -> None:
    one, batch = Filter(node), batch_of(seen)
    rows = sorted(data.draw(st.sets(st.integers(0, len(seen) - 1))))
    assert list(one.rows(batch, rows)) == [row for row in one.rows(batch) if row in rows]
    part = batch.after(len(seen) // 2)
    assert part is not None
    assert [part.offsets[row] for row in one.rows(part)] == [
        batch.offsets[row] for row in one.rows(batch) if row >= len(seen) // 2
    ]


@given(FILTERS)
def test_the_canonical_text_is_the_same_filter(node: Node) -> None:
    text = str(node)
    assume(len(text) <= CHARS_MAX)
    again = parse(text, now_us=7)
    assert again.node == node
    assert again.text == text
    assert hash(again) == hash(Filter(node))


@given(st.lists(FILTERS, max_size=3), RECORDS)
def test_several_filters_all_have_to_match(nodes: list[Node], seen: Seen) -> None:
    together = all_of(map(Filter, nodes))
    if together is None:
        assert not nodes
        return
    assert bool(together.rows(batch_of([seen]))) is all(says(node, seen) is True for node in nodes)


PIECE_TEXTS = (
    "a", "b.c", "a[0]", "@key", "@header.x", "@timestamp", "@offset", "@tombstone", "@", "=", "==", "!=", "!", "~",
    ">", "<=", "^=", "$=", "in", "(", ")", "[", "]", ",", "&&", "||", "and", "or", '"t"', "'t'", '"', "'", "\\",
    "1", "-1e9", "true", "-15m", "exists(", "has(", ".startsWith(", ".contains(", "$", "ü", "\n", "\0", "\ud800",
)  # fmt: skip
PIECES = st.sampled_from(PIECE_TEXTS)


@given(st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=30), st.sampled_from(["", " "]))
def test_any_text_is_a_filter_or_refused_with_a_place(pieces: list[str], between: str) -> None:
    text = between.join(pieces)
    with suppress(MalformedFilter):
        found = parse(text, now_us=10**15)
        assert parse(found.text, now_us=0).node == found.node
        return
    with pytest.raises(MalformedFilter) as raised:
        parse(text, now_us=10**15)
    assert 0 <= int(raised.value.details["position"]) <= len(text)
    assert raised.value.details["problem"]


def adversarial(draw: random.Random) -> str:
    """A text that resembles filters, or nothing at all."""
    pieces = [
        *PIECE_TEXTS,
        " and ",
        " or ",
        " ",
        "a=1&&",
        "a in (1,2)",
        "x" * 50,
        "(" * 30,
        '"' * 20,
        '\\"' * 10,
        " " * 40,
    ]
    match draw.randrange(5):
        case 0:
            return "".join(draw.choices(pieces, k=draw.randrange(1, 200)))
        case 1:
            return (draw.choice(pieces) + draw.choice(pieces)) * draw.randrange(1, 300)
        case 2:
            return " ".join(draw.choices(pieces, k=draw.randrange(1, 60)))
        case 3:
            return "a=" + "".join(
                draw.choices(['"', "\\", "a", " ", "&", "|", "(", ")", "and "], k=draw.randrange(1, 900))
            )
    return "".join(chr(draw.randrange(1, 0x2000)) for _ in range(draw.randrange(1, 300)))


@pytest.mark.slow
def test_twenty_thousand_adversarial_texts_parse_or_are_refused_in_little_memory() -> None:
    draw, parsed = random.Random(7), 0
    for _ in range(20_000):
        with suppress(MalformedFilter):
            parse(adversarial(draw), now_us=0)
            parsed += 1
    assert 200 < parsed < 5_000
    tracemalloc.start()
    try:
        for _ in range(200):
            text = adversarial(draw)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(MalformedFilter):
                parse(text, now_us=0)
            assert tracemalloc.get_traced_memory()[1] - before < 1_000_000, text
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000, "!" * 100_000, "!(" * 50_000, "(" * 900 + "a=1" + ")" * 900, "a=1&&" * 390 + "a=1",
        "a in (" + "1," * 900 + "1)", '"' * 1_999, "\\" * 1_999, '"\\' * 990, "a=" + '"\\' * 990, "a=" + " " * 1_990,
        "a" + "[" * 1_990, "(a=" + "(" * 1_990, "a." * 990, "a=" + "and " * 490, " " * 2_000, "a='" + '"' * 1_990,
    ],
)  # fmt: skip
def test_adversarial_texts_are_refused_at_once(text: str) -> None:
    with pytest.raises(MalformedFilter) as raised:
        parse(text, now_us=0)
    assert 0 <= int(raised.value.details["position"]) <= len(text)
    assert len(str(raised.value)) < 400
