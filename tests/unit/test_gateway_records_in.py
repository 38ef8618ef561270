"""Records as requests bring them: what goes in is what is written, and what is wrong is refused with its place."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_gateway.http.problems import Problem
from comet_gateway.push import frames
from comet_gateway.schemas.records import Columns, decode_body, decode_line, decode_lines, read_records

MANY = 100


def decoded(document: Any) -> Columns:
    return decode_body(json.dumps(document).encode(), MANY)


def problem_of(body: bytes, records_max: int = MANY) -> Problem:
    with pytest.raises(Problem) as caught:
        decode_body(body, records_max)
    return caught.value


# ---- what goes in

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["key", "value", "records", "é\0"]
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.lists(st.tuples(TEXT, st.binary(max_size=5)), max_size=3)


@st.composite
def records(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """A record as a client says it, and what is to be written: value, key, headers, time, partition."""
    said: dict[str, Any] = {}
    match draw(st.sampled_from(["value", "value", "text", "base64", "tombstone"])):
        case "value":
            said["value"] = draw(JSON_VALUES)
            value: Any = said["value"]
        case "text":
            said["text"] = draw(TEXT)
            value = said["text"].encode()
        case "base64":
            value = draw(st.binary(max_size=9))
            said["base64"] = b64encode(value).decode()
        case _:
            said["tombstone"], value = True, None
    key = draw(st.none() | TEXT.map(str.encode) | st.binary(max_size=6))
    if key is not None:
        try:
            said["key"] = key.decode()
        except UnicodeDecodeError:
            said["key_base64"] = b64encode(key).decode()
    elif draw(st.booleans()):
        said["key"] = None
    headers = draw(st.none() | HEADERS)
    if headers is not None:
        said["headers"] = [_header(name, content) for name, content in headers]
    time = draw(st.none() | st.integers(0, 2**63 - 1))
    if time is not None:
        said["timestamp_us"] = draw(st.sampled_from([time, str(time)]))
    partition = draw(st.none() | st.integers(0, 2**31 - 1))
    if partition is not None:
        said["partition"] = partition
    items = list(said.items())
    return dict(draw(st.permutations(items))), (value, key, headers or [], time, partition)


def _header(name: str, content: bytes) -> dict[str, str]:
    try:
        return {"name": name, "value": content.decode()}
    except UnicodeDecodeError:
        return {"name": name, "base64": b64encode(content).decode()}


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    count = len(columns)
    rest = (columns.keys, columns.headers, columns.timestamps_us, columns.partitions)
    empty: tuple[Any, ...] = (None, [], None, None)
    filled = [[nothing] * count if column is None else column for column, nothing in zip(rest, empty, strict=True)]
    return list(zip(columns.values, *filled, strict=True))


def check(columns: Columns, said: Sequence[dict[str, Any]], wanted: Sequence[tuple[Any, ...]]) -> None:
    rows = rows_of(columns)
    assert len(rows) == len(wanted)
    for row, document, expected in zip(rows, said, wanted, strict=True):
        if "value" in document:
            assert json.loads(row[0]) == document["value"]
        else:
            assert row[0] == expected[0]
        assert row[1:] == expected[1:]


LISTS = st.lists(records(), min_size=1, max_size=5)
STYLES = st.sampled_from([{}, {"ensure_ascii": False}, {"separators": (",", ":")}])


@settings(max_examples=300)
@given(LISTS, STYLES | st.just({"indent": 1}))
def test_a_document_is_read_as_it_was_meant(drawn: list[tuple[dict[str, Any], Any]], style: dict[str, Any]) -> None:
    said = [document for document, _ in drawn]
    body = json.dumps({"records": said}, **style).encode()
    check(decode_body(body, MANY), said, [wanted for _, wanted in drawn])


@settings(max_examples=300)
@given(records(), STYLES)
def test_one_record_is_read_as_it_was_meant(drawn: tuple[dict[str, Any], Any], style: dict[str, Any]) -> None:
    said, wanted = drawn
    body = json.dumps(said, **style).encode()
    check(decode_body(body, MANY), [said], [wanted])
    check(decode_line(body), [said], [wanted])


@settings(max_examples=300)
@given(LISTS, STYLES, st.sampled_from(["\n", "\r\n", " \n"]))
def test_lines_are_read_as_they_were_meant(
    drawn: list[tuple[dict[str, Any], Any]], style: dict[str, Any], end: str
) -> None:
    said = [document for document, _ in drawn]
    data = "".join(json.dumps(document, **style) + end for document in said).encode()
    found = decode_lines(data, len(said))
    if found is not None:  # else something has to be looked at line by line
        check(found, said, [wanted for _, wanted in drawn])
    for line, document, (_, wanted) in zip(data.split(b"\n"), said, drawn, strict=False):
        check(decode_line(line), [document], [wanted])


def test_plain_lines_are_read_together() -> None:
    found = decode_lines(b'{"value":1,"key":"a"}\n{"value":{"key":2}}\n', 2)
    assert found is not None
    assert (found.values, found.keys) == ([b"1", b'{"key":2}'], [b"a", None])


@pytest.mark.parametrize(
    "value",
    [
        b"1e400",
        b"0.10",
        b"-0",
        b"12345678901234567890123",
        b'{ "a" :\n[1,\t2] }',
        b'"\\u00e9\\ud83d\\ude00"',
        b'{"a":1,"a":2}',
    ],
)
def test_a_value_stays_byte_for_byte(value: bytes) -> None:
    assert decode_body(b'{"value": %b }' % value, 1).values == [value]
    assert decode_body(b'{"records":[{"value":%b},{"text":""}]}' % value, 2).values == [value, b""]


def test_headers_may_be_an_object() -> None:
    found = decoded({"text": "", "headers": {"a": "1", "b": "é"}})
    assert found.headers == [[("a", b"1"), ("b", "é".encode())]]


def test_whole_numbers_are_whole_however_they_are_written() -> None:
    found = decode_body(b'{"value":1,"partition":14.0,"timestamp_us":1e3}', 1)
    assert (found.partitions, found.timestamps_us) == ([14], [1000])
    assert [type(number) for number in (found.partitions or [])] == [int]


# ---- what is refused


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b"", 0),
        (b'{"value":1', 10),
        (b'{"value":tru}', 10),
        (b'{"value":01}', 10),
        (b'{"value":1} 2', 13),
        (b'{"value":1,}', 11),
        (b'{"value":[1,]}', 12),
        (b'{"value":NaN}', 9),
        (b"{'value':1}", 1),
        (b'\xef\xbb\xbf{"value":1}', 0),
        (b'{"value":"\xff"}', 10),
        (b'{"text":"ab\xff"}', 11),
        (b'{"value":"\xed\xa0\x80"}', 10),
        (b'{"records":[{"value":1},{"value":"\x01"}]}', 34),
        (b'{"value":"\\ud800 and more"}', 16),
    ],
)
def test_malformed_json_is_refused_with_its_place(body: bytes, position: int) -> None:
    problem = problem_of(body)
    assert (problem.code, problem.kind.status, problem.more) == ("MALFORMED_BODY", 400, {"position": position})
    assert f"byte {position}" in problem.detail


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_json_may_not_be_nested_without_end(opening: bytes) -> None:
    for body in (b'{"value":' + opening * 1_000_000, b'{"headers":' + opening * 1_000_000, opening * 1_000_000):
        assert problem_of(body).code in {"MALFORMED_BODY", "VALIDATION"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"{}", "one of value, text, base64 and tombstone"),
        (b'{"key":"a"}', "one of value"),
        (b'{"value":1,"text":"a"}', "value and text"),
        (b'{"text":"a","tombstone":true}', "text and tombstone"),
        (b'{"tombstone":false}', "tombstone"),
        (b'{"text":null}', "$.text"),
        (b'{"base64":"_-=="}', "base64"),
        (b'{"base64":"YQ"}', "base64"),
        (b'{"value":1,"color":"red"}', "color"),
        (b'{"value":1,"offset":"1"}', "offset"),
        (b'{"value":1,"key":7}', "$.key"),
        (b'{"value":1,"key":"a","key_base64":"YQ=="}', "key or key_base64"),
        (b'{"value":1,"partition":-1}', "partition"),
        (b'{"value":1,"partition":2147483648}', "partition"),
        (b'{"value":1,"partition":"0"}', "$.partition"),
        (b'{"value":1,"partition":true}', "$.partition"),
        (b'{"value":1,"timestamp_us":-1}', "timestamp_us"),
        (b'{"value":1,"timestamp_us":9223372036854775808}', "timestamp_us"),
        (b'{"value":1,"timestamp_us":"9223372036854775808"}', "timestamp_us"),
        (b'{"value":1,"timestamp_us":"\xd9\xa1"}', "timestamp_us"),
        (b'{"value":1,"timestamp_us":1.5}', "timestamp_us"),
        (b'{"value":1,"timestamp_us":1e30}', "timestamp_us"),
        (b'{"value":1,"partition":1.5}', "partition"),
        (b'{"value":1,"partition":1e10}', "partition"),
        (b'{"value":1,"headers":"a"}', "headers"),
        (b'{"value":1,"headers":{"a":1}}', "text"),
        (b'{"value":1,"headers":[["a","b"]]}', "header"),
        (b'{"value":1,"headers":[{"name":"a"}]}', "value or base64"),
        (b'{"value":1,"headers":[{"value":"a"}]}', "name"),
        (b'{"value":1,"headers":[{"name":"a","value":"1","base64":""}]}', "value or base64"),
        (b'{"value":1,"headers":[{"name":"a","base64":"?"}]}', "base64"),
        (b'{"records":[]}', "empty"),
        (b'{"records":[1]}', "$.records[0]"),
        (b'{"records":[{"value":1}],"value":1}', "not both"),
        (b'{"records":[{"value":1}],"partition":1}', "not both"),
        (b'{"records":[{"value":1},{"records":[]}]}', "$.records[1]"),
        (b'{"records":[{"value":1},{"tombstone":true,"text":"a"}]}', "record 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name(body: bytes, said: str) -> None:
    problem = problem_of(body)
    assert (problem.code, problem.kind.status) == ("VALIDATION", 422)
    assert said in problem.detail


@pytest.mark.parametrize(
    "body",
    [
        b'{"value":1,"value":1}',
        b'{"value":{"value":1},"value":{"value":1}}',
        b'{"key":"key","key":"a","value":1}',
        b'{"key":null,"value":1,"key":"a"}',
        b'{"value":1,"v\\u0061lue":2}',
        b'{"text":"a","text":"b"}',
        b'{"base64":"","bas\\u00656\\u0034":""}',
        b'{"value":1,"partition":0,"partition":1}',
        b'{"value":1,"headers":[],"headers":{"a":"b"}}',
        b'{"value":1,"headers":{"a":"1","a":"1"}}',
        b'{"value":1,"headers":[{"name":"a","value":"1","value":"2"}]}',
        b'{"records":[{"value":1}],"records":[{"value":1}]}',
        b'{"records":[{"value":1},{"value":1,"value":2}]}',
        b'{"records":[{"value":"value"},{"key":"a","value":1,"key":"b"}]}',
    ],
)
def test_what_stands_twice_is_refused(body: bytes) -> None:
    problem = problem_of(body)
    assert (problem.code, "duplicate" in problem.detail) == ("VALIDATION", True), problem.detail
    if b"records" not in body:
        assert decode_lines(body, 1) is None


@settings(max_examples=300)
@given(LISTS, st.data())
def test_any_member_that_stands_twice_is_refused(drawn: list[tuple[dict[str, Any], Any]], data: st.DataObject) -> None:
    said = [document for document, _ in drawn]
    index = data.draw(st.integers(0, len(said) - 1))
    name = data.draw(st.sampled_from(sorted(said[index])))
    texts = [json.dumps(document) for document in said]
    texts[index] = f"{texts[index][:-1]}, {json.dumps(name)}: {json.dumps(said[index][name])}}}"
    assert "duplicate" in problem_of(f'{{"records": [{", ".join(texts)}]}}'.encode()).detail


def test_a_document_has_a_limit_of_records() -> None:
    body = json.dumps({"records": [{"value": 1}] * 3}).encode()
    assert len(decode_body(body, 3)) == 3
    problem = problem_of(body, records_max=2)
    assert (problem.code, problem.kind.status) == ("BODY_TOO_LARGE", 413)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b'{"value":1} {"value":2}\n', 1),
        (b'{"value":\n1}\n', 2),
        (b'{"value":1}\n\n', 2),
        (b'{"value":1}\n{"value":}\n', 2),
        (b'{"value":1}\n{"text":"a","tombstone":true}\n', 2),
        (b'{"value":"\xff"}\n', 1),
    ],
)
def test_lines_that_are_not_one_record_each_are_looked_at_one_by_one(data: bytes, count: int) -> None:
    assert decode_lines(data, count) is None


# ---- frames


@settings(max_examples=300)
@given(LISTS, STYLES, st.booleans())
def test_a_frame_is_read_as_it_was_meant(
    drawn: list[tuple[dict[str, Any], Any]], style: dict[str, Any], keyed: bool
) -> None:
    said = [document for document, _ in drawn]
    content: dict[str, Any] = {"record": said[0]} if len(said) == 1 else {"records": said}
    more = {"acks": "all", "idempotency_key": "topic"} if keyed else {}
    text = json.dumps({"type": "produce", "id": "id", "topic": "records", **content, **more}, **style)
    frame = frames.read(text)
    assert isinstance(frame, frames.Produce)
    records = [frame.record] if frame.record is not None else frame.records or []
    found = read_records(text.encode(), records, ("type", *frame.__struct_fields__), MANY)
    check(found, said, [wanted for _, wanted in drawn])


def test_a_frame_has_no_more_records_than_a_document() -> None:
    text = b'{"type":"produce","id":"1","topic":"one","records":[{"text":""},{"text":""}]}'
    frame = frames.read(text)
    assert isinstance(frame, frames.Produce) and frame.records is not None
    with pytest.raises(Problem) as caught:
        read_records(text, frame.records, (), 1)
    assert caught.value.code == "BODY_TOO_LARGE"
