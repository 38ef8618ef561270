"""Lines to records and records to lines, and what errors look like. Nothing here needs a broker."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.cli._exit import ERROR, NOT_FOUND, UNAVAILABLE, USAGE, exit_code, hint
from comet.cli._input_records import check_json_lines, split_keys
from comet.cli._lag import history_rows
from comet.cli._output import plain_table, report_error
from comet.cli._records import parse_headers, render
from comet.cli._stdin import LINE_BYTES_MAX, LineSplitter, line_chunks
from comet.cli.consume import Printer
from comet.encryption.envelope import NONCE_BYTES, TAG_BYTES, Prefix
from comet.errors import BY_CODE, DecryptionError, InvalidArgument, RecordTooLarge, TopicNotFound
from comet.records import decode, encode
from comet.types import LagPoint
from comet.values.record import RecordBatch


@given(
    st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))), st.integers(1, 9)
)
def test_lines_do_not_depend_on_how_they_arrive(lines: list[bytes], chunk_bytes: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()
    found: list[bytes] = []
    for at in range(0, len(data), chunk_bytes):
        found += splitter.feed(data[at : at + chunk_bytes])
    assert found + splitter.finish() == lines


def test_records_before_an_encrypted_one_of_their_batch_are_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sealed = Prefix("k", "t", b"w").encode() + bytes(NONCE_BYTES + TAG_BYTES)
    data = b"".join(encode([b"one", b"two", sealed, b"four"], timestamps=[0] * 4))
    batch: RecordBatch[bytes] = RecordBatch("t", 0, decode(data))
    printer = Printer("value", None)
    assert printer.print(batch, 2) == 2
    with pytest.raises(DecryptionError, match="record 2 of t/0: its value is encrypted with key 'k'"):
        printer.print(batch, 4)
    assert capfdbinary.readouterr().out == b"one\ntwo\none\ntwo\n"


def test_a_last_line_without_newline_counts_and_carriage_returns_do_not() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\r\ntw") == [b"one"]
    assert splitter.feed(b"o") == []
    assert splitter.finish() == [b"two"]
    assert splitter.finish() == []


def test_a_line_without_end_is_refused_before_memory_is() -> None:
    splitter = LineSplitter()
    chunk = bytes(1 << 20)
    for _ in range(LINE_BYTES_MAX // len(chunk)):
        assert splitter.feed(chunk) == []
    with pytest.raises(RecordTooLarge, match=f"longer than {LINE_BYTES_MAX} bytes"):
        splitter.feed(chunk)


def test_lines_come_from_plain_files_and_from_pipes(tmp_path: Path) -> None:
    async def read(descriptor: int) -> list[bytes]:
        return [line async for lines in line_chunks(descriptor) for line in lines]

    (tmp_path / "lines").write_bytes(b"a\nb\nc")
    with (tmp_path / "lines").open("rb") as file:
        assert asyncio.run(read(file.fileno())) == [b"a", b"b", b"c"]
    reading, writing = os.pipe()
    os.write(writing, b"x\n\ny\n")
    os.close(writing)
    assert asyncio.run(read(reading)) == [b"x", b"", b"y"]
    os.close(reading)


def test_a_line_is_cut_at_its_first_separator() -> None:
    assert split_keys([b"k:v:w", b":v"], b":", 1) == ([b"k", b""], [b"v:w", b"v"])
    with pytest.raises(InvalidArgument, match="line 8 lacks the separator ':'"):
        split_keys([b"k:v", b"oops"], b":", 7)


def test_json_lines_are_checked_by_number() -> None:
    check_json_lines([b'{"a": 1}', b"2"], 1)
    with pytest.raises(InvalidArgument, match="line 11 is not JSON"):
        check_json_lines([b"{}", b"{"], 10)


def test_headers() -> None:
    assert parse_headers(["a=1", "a=", "b=x=y"]) == [("a", b"1"), ("a", b""), ("b", b"x=y")]
    for wrong in ("a", "=1"):
        with pytest.raises(InvalidArgument, match="NAME=VALUE"):
            parse_headers([wrong])


@pytest.mark.parametrize(
    ("form", "printed"),
    [("value", b"v\n"), ("raw", b"v"), ("key-value", b"k\tv\n")],
)
def test_formats(form: str, printed: bytes) -> None:
    assert render(form, "t", 0)((7, 8, b"k", b"v", [])) == printed


def test_json_keeps_bytes_that_are_no_text_apart() -> None:
    row = render("json", "t", 3)
    assert json.loads(row((7, 8, None, b"\xff", [("h", b"1"), ("h", b"\xfe")]))) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp_us": 8,
        "key": None,
        "base64": "/w==",
        "headers": [{"name": "h", "value": "1"}, {"name": "h", "base64": "/g=="}],
    }


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (
            b'{"symbol": "ACME", "bid": 9.500000000000000001}',
            '"value": {"symbol": "ACME", "bid": 9.500000000000000001}',
        ),
        (b'{\n\r"a": "\xc3\xa9"}', '"value": {  "a": "\u00e9"}'),
        (b"null", '"value": null'),
        (b'"a"', '"value": "a"'),
        (b"a\n", '"text": "a\\n"'),
        (b"", '"text": ""'),
        (b'"\xff"', '"base64": "Iv8i"'),
        (b"[" * 100_000, f'"text": "{"[" * 100_000}"'),
        (None, '"tombstone": true'),
    ],
)
def test_a_value_that_is_json_is_printed_as_json(value: bytes | None, printed: str) -> None:
    line = render("json", "t", 3)((7, 8, b"k", value, [("h", b"1")])).decode()
    assert line.endswith(f'"key": "k", {printed}, "headers": [{{"name": "h", "value": "1"}}]}}\n')
    assert line.count("\n") == 1
    json.loads(line)


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(InvalidArgument, match="value, key-value, json, raw"):
        render("xml", "t", 0)


def test_every_error_has_a_documented_exit_code() -> None:
    codes = {exit_code(cls("x")) for cls in BY_CODE.values()}
    assert codes == {ERROR, USAGE, NOT_FOUND, UNAVAILABLE}
    assert exit_code(TopicNotFound("x")) == NOT_FOUND
    assert all("\n" not in hint(cls("x")) for cls in BY_CODE.values())


def test_an_error_is_one_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(TopicNotFound("topic 'q' does not exist"), as_json=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: topic 'q' does not exist [TOPIC_NOT_FOUND]"
    assert lines[1].startswith("hint: ") and len(lines) == 2


def test_an_error_as_json_is_one_document_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(TopicNotFound("gone", details={"topic": "q"}), as_json=True)
    captured = capsys.readouterr()
    error = json.loads(captured.err)["error"]
    assert captured.out == ""
    assert (error["code"], error["retriable"], error["details"]) == ("TOPIC_NOT_FOUND", False, {"topic": "q"})


def test_a_plain_table_is_aligned_for_awk() -> None:
    text = plain_table(["name", "how many"], [["a", "1"], ["long", "23"]], [False, True])
    assert text == "name  how_many\na            1\nlong        23"


def test_the_history_of_a_lag_leaves_out_the_moments_without() -> None:
    def rows(**lags: list[int]) -> list[tuple[object, object]]:
        points = [
            LagPoint(at * 1_000_000, topic, lag=lag, age_s=0.0, committed=0, end=lag)
            for at in range(max(map(len, lags.values())))
            for topic, values in lags.items()
            for lag in values[at : at + 1]
        ]
        return [(row[1], row[2]) for row in history_rows(points)]

    assert rows(a=[0, 0, 0, 5, 3, 0, 0, 0]) == [("a", 0), ("a", 5), ("a", 3), ("a", 0)]
    assert rows(a=[0, 0, 0], b=[7, 7]) == [("b", 7), ("b", 7)]
    assert rows(a=[0, 0]) == []
