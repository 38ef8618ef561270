"""What `comet consume` prints: output templates, and records chosen by conditions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.cli._filter import filters_of
from comet.cli._records import FORMATS, render, shows_values
from comet.cli._templates import LISTED, OutputTemplate
from comet.cli.consume import Printer
from comet.encryption.envelope import NONCE_BYTES, TAG_BYTES, Prefix
from comet.errors import DecryptionError, InvalidArgument
from comet.records import decode, encode
from comet.values.record import RecordBatch

SEALED = Prefix("k", "t", b"w").encode() + bytes(NONCE_BYTES + TAG_BYTES)
ROW = (7, 1_767_225_600_123_456, b"key", b"value", [("a", b"1"), ("b", b"\xff")])
EMPTY = (0, 0, None, None, ())


def batch_of(*values: bytes | None) -> RecordBatch[bytes]:
    return RecordBatch("t", 0, decode(b"".join(encode(list(values), timestamps=[0] * len(values)))))


@pytest.mark.parametrize(
    ("template", "full", "empty"),
    [
        ("%t", b"quotes", b"quotes"), ("%p", b"3", b"3"), ("%o", b"7", b"0"), ("%k", b"key", b""),
        ("%v", b"value", b""), ("%s", b"value", b""), ("%T", b"1767225600123", b"0"),
        ("%h", b"a=1,b=\xff", b""), ("%K|%S", b"3|5", b"-1|-1"), ("%%v", b"%v", b"%v"),
        ("%k %o %v\\n", b"key 7 value\n", b" 0 \n"), ("\\t\\r\\0\\\\n%o", b"\t\r\0\\n7", b"\t\r\0\\n0"),
        ("\\x41\\xfF%p", b"A\xff3", b"A\xff3"), ("ü\n%o", "ü\n7".encode(), "ü\n0".encode()),
    ],
)  # fmt: skip
def test_a_template_writes_the_fields_of_a_record(template: str, full: bytes, empty: bytes) -> None:
    write = render(template, "quotes", 3)
    assert (write(ROW), write(EMPTY)) == (full, empty)


@pytest.mark.parametrize("wrong", ["%q", "%", "100%", "%v\\", "%v\\q", "%v\\x4", "%v\\xg0", "% v", "%é"])
def test_a_wrong_template_is_refused_with_what_there_is(wrong: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        render(wrong, "t", 0)
    assert LISTED in refused.value.message
    with pytest.raises(InvalidArgument, match="raw, or a template of %t topic"):
        render("nonsense", "t", 0)


@given(st.text(alphabet="%\\tpokvsThKSnr0x4 é", max_size=12))
def test_each_template_is_written_or_refused(text: str) -> None:
    try:
        template = OutputTemplate(text)
    except InvalidArgument:
        return
    assert isinstance(template.render("t", 0)(ROW), bytes)


def test_an_encrypted_value_only_ends_formats_that_show_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert {form: shows_values(form) for form in (*FORMATS, "%k", "%S", "%v", "%%v")} == {
        "value": True, "key-value": True, "json": False, "raw": True, "%k": False, "%S": True, "%v": True, "%%v": False,
    }  # fmt: skip
    assert Printer("%o\\n", None).print(batch_of(b"1", SEALED), 2) == 2
    with pytest.raises(DecryptionError, match="record 1 of t/0"):
        Printer("%o %v\\n", None).print(batch_of(b"1", SEALED), 2)
    assert capfdbinary.readouterr().out == b"0\n1\n0 1\n"


def test_conditions_choose_records_and_count_counts_them(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    filters = filters_of(['n > 1 and side = "buy"'])
    batch = batch_of(
        b'{"n": 1, "side": "buy"}', b'{"n": 2, "side": "buy"}', b"not JSON", None,
        b'{"n": 3, "side": "sell"}', b'{"n": 4, "side": "buy"}', b'{"n": 5, "side": "buy"}', b'{"n": 6}',
    )  # fmt: skip
    whole = Printer("%o ", None, filters)
    assert (whole.print(batch, 8), whole.full()) == (8, False)
    some = Printer("%o ", 2, filters)
    assert (some.print(batch, 8), some.full()) == (6, True)
    assert some.print(batch, 8) == 0
    short = Printer("%o ", None, filters)
    assert (short.print(batch, 5), short.print(batch, 0)) == (5, 0)
    assert capfdbinary.readouterr().out == b"1 5 6 1 5 1 "


def test_an_encrypted_value_cannot_be_filtered(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    batch = batch_of(b'{"n": 1}', SEALED, b'{"n": 2}')
    with pytest.raises(DecryptionError, match="record 1 of t/0"):
        Printer("json", None, filters_of(["n>0"])).print(batch, 3)
    assert capfdbinary.readouterr().out.count(b"\n") == 1


def test_a_wrong_condition_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidArgument, match=r"at character 8: a second operator.*price >▸> 3") as refused:
        filters_of(["a=1", "price >> 3"])
    assert refused.value.details["position"] == "7"
    assert "joined by and" in refused.value.details["hint"]
    assert not filters_of([])
