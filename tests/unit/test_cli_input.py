"""What `comet produce` makes records of: keys from fields, CSV, templates."""

from __future__ import annotations

import csv
import io
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.cli._generated import LISTED, RecordTemplate
from comet.cli._input_records import CsvLines, PlainLines, field_key
from comet.cli._stdin import LINE_BYTES_MAX
from comet.errors import InvalidArgument, RecordTooLarge


def read_csv(text: bytes, key_field: str = "") -> tuple[list[bytes] | None, list[object]]:
    reader = CsvLines(key_field)
    keys, values = reader.read(text.split(b"\n"))
    reader.finish()
    return keys, [json.loads(value) for value in values]


def test_rows_of_csv_are_json_objects() -> None:
    text = (
        b"\xef\xbb\xbfsymbol, price,note,ok\n"
        b'A,1.50,"with ""quotes"", and a comma",true\n'
        b'B,007,"two\nlines",\n'
        b"\n"
        b"C,-1e-3,true love,false"
    )
    keys, rows = read_csv(text, "symbol")
    assert keys == [b"A", b"B", b"C"]
    assert rows == [
        {"symbol": "A", "price": 1.5, "note": 'with "quotes", and a comma', "ok": True},
        {"symbol": "B", "price": "007", "note": "two\nlines", "ok": None},
        {"symbol": "C", "price": -0.001, "note": "true love", "ok": False},
    ]
    assert CsvLines().read([b"n", b"12345678901234567890.10"])[1] == [b'{"n":12345678901234567890.10}']


NAMES = st.lists(
    st.text(alphabet="abü \"',", min_size=1, max_size=3).map(lambda name: f"x{name}x"),
    unique=True,
    min_size=1,
    max_size=3,
)
CELLS = st.text(alphabet='ab",\n ü\t0', max_size=6)


@given(NAMES, st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=4), st.integers(1, 5))
def test_csv_means_what_pythons_reader_says(names: list[str], rows: list[list[str]], at_once: int) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(names)
    writer.writerows([row[: len(names)] for row in rows])
    lines = out.getvalue().encode().split(b"\n")[:-1]
    reader, found = CsvLines(), list[bytes]()
    for first in range(0, len(lines), at_once):
        found += reader.read(lines[first : first + at_once])[1]
    reader.finish()
    texts = [{name: cell for name, cell in zip(names, row, strict=False)} for row in rows]  # noqa: C416
    decoded = [json.loads(value) for value in found]
    assert [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in decoded] == [
        {name: cell if cell != "0" else "0" for name, cell in row.items()} for row in texts
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a,b\n1,2\n1\n", "line 3 has 1 cells, and the header 2"),
        (b'a,b\n"1\n2",3,4\n', "line 2 has 3 cells"),
        (b'a\n1\n"open\nend', "line 3 opens a quotation mark that is not closed"),
        (b'a\n"x"y\n', "line 2 is not CSV"),
        (b"a\n\xff\n", "line 2 is not UTF-8"),
        (b"a,\n", "lacks the name of a field"),
        (b"a,b,a\n", "has 'a' twice"),
        (b"a,b\n1,2", "the CSV has no field 'k': it has a, b"),
        (b"k,b\n,2", "line 2 has no k, from which the key is taken"),
        (b"", "lacks the name of a field"),
    ],
)
def test_csv_that_is_wrong_is_refused_by_line(text: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_csv(text, "k" if "key is taken" in said or "field 'k'" in said else "")
    assert said in refused.value.message


def test_csv_without_a_line_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="the CSV is empty"):
        CsvLines().finish()


def test_a_row_without_end_is_refused_before_memory_is() -> None:
    reader = CsvLines()
    reader.read([b"a", b'"'])
    lines = [bytes(1 << 20)] * (LINE_BYTES_MAX // (1 << 20) + 1)
    with pytest.raises(RecordTooLarge, match="the row at line 2"):
        reader.read(lines)


def test_a_large_cell_is_no_matter() -> None:
    assert len(CsvLines().read([b"a", b"x" * 300_000])[1][0]) == 300_008


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'{"k": "EUR"}', b"EUR"), (b'{"k": "a\\u00fc\\n"}', "aü\n".encode()), (b'{"x": 1, "k": 1.500}', b"1.500"),
        (b'{"k": true}', b"true"), (b'{"k": ""}', b""),
    ],
)  # fmt: skip
def test_a_key_is_taken_from_a_field(value: bytes, key: bytes) -> None:
    assert field_key(value, "k", 1) == key


@pytest.mark.parametrize(
    "value", [b"{}", b'{"k": null}', b'{"k": {}}', b'{"k": [1]}', b"[1]", b"nonsense", b'"k"', b"\xff"]
)
def test_a_record_without_its_key_is_refused_by_line(value: bytes) -> None:
    reader = PlainLines(key_field="k")
    assert reader.read([b'{"k": 1}']) == ([b"1"], [b'{"k": 1}'])
    with pytest.raises(InvalidArgument, match="line 3 "):
        reader.read([b'{"k": 1}', value])


def generated(text: str, count: int = 4, seed: int = 1) -> list[bytes]:
    chunks = list(RecordTemplate(text, Random(seed), lambda: 1_767_225_600_000).records(count))
    return [record for chunk in chunks for record in chunk]


def test_a_template_makes_records() -> None:
    assert generated('{"n": %d, "at": %T, "p": "100%%"}', 3) == [
        b'{"n": %d, "at": 1767225600000, "p": "100%%"}' % n for n in range(3)
    ]
    sides = generated("%{buy|sell|}", 200)
    assert set(sides) == {b"buy", b"sell", b""}
    assert {int(text) for text in generated("%{-2..3}", 200)} == set(range(-2, 4))
    assert generated("%{5..5}", 2) == [b"5", b"5"]
    assert all(0 <= float(text) <= 1 for text in generated("%f", 50))
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in generated("%x", 50))
    assert generated("ü", 2) == ["ü".encode()] * 2
    assert generated("%x %f", 9) == generated("%x %f", 9) != generated("%x %f", 9, seed=2)


def test_generated_records_come_in_bounded_chunks() -> None:
    chunks = RecordTemplate("x" * 100_000, Random(1), lambda: 0).records(10**12)
    assert [len(next(chunks)) for _ in range(4)] == [1, 10, 10, 10]
    assert [len(chunk) for chunk in RecordTemplate("%d", Random(1), lambda: 0).records(2500)] == [1, 1000, 1000, 499]
    assert list(RecordTemplate("%d", Random(1), lambda: 0).records(0)) == []


@pytest.mark.parametrize("text", ["%q", "%", "5%", "%{}", "%{3..1}", "%{a|b", "%v"])
def test_a_wrong_template_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        generated(text)
    assert LISTED in refused.value.message
