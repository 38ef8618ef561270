"""Schedules as JSON at the gateway: bodies of requests, and documents of answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

import comet
from comet_gateway.http.problems import Problem
from comet_gateway.records.schedule_json import schedule_json
from comet_gateway.schemas.schedules_api import BODY, ScheduleDocument, decode_schedule

SCHEMA = jsonschema_rs.Draft202012Validator(BODY["content"]["application/json"]["schema"])


def body(**members: Any) -> bytes:
    return json.dumps({"spec": "every 15m", "record": {"value": 1}} | members).encode()


def test_a_body_has_the_record_byte_for_byte() -> None:
    text = b"""{"record": {"value": {"bid": 1.00}, "key": "k", "headers": {"a": "b"}, "partition": 2, "ttl_ms": "-1"},
        "spec": "every 15m", "late": "skip", "late_max_ms": "1000", "jitter_ms": 5.0, "end_us": 7, "fires_max": "9"}"""
    found = decode_schedule(text)
    assert found.record == comet.NewRecord(b'{"bid": 1.00}', b"k", [("a", b"b")], None, 2, -1)
    assert (found.spec, found.late, found.late_max_ms) == ("every 15m", "skip", 1_000)
    assert (found.jitter_ms, found.end_us, found.fires_max) == (5, 7, 9)


def test_all_but_spec_and_record_may_be_left_out() -> None:
    found = decode_schedule(body(record={"tombstone": True}, late=None))
    assert found.record == comet.NewRecord(None)
    assert (found.late, found.late_max_ms, found.jitter_ms, found.end_us, found.fires_max) == ("", 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (b"{", "MALFORMED_BODY", "byte"),
        (b"[]", "VALIDATION", "object"),
        (b'{"spec": "every 15m"}', "VALIDATION", "record"),
        (body(record={"value": 1, "text": "a"}), "VALIDATION", "one of value, text"),
        (body(record={"value": 1, "timestamp_us": 5}), "VALIDATION", "its `spec` says when"),
        (body(record={"value": 1, "delay_ms": 5}), "VALIDATION", "its `spec` says when"),
        (body(record={"value": 1, "due": "2099-01-01T00:00Z"}), "VALIDATION", "its `spec` says when"),
        (body(record={"value": 1, "expected": 5}), "VALIDATION", "unknown field"),
        (body(paused=True), "VALIDATION", "unknown field"),
        (body(late="never"), "VALIDATION", "late"),
        (body(jitter_ms=86_400_001), "VALIDATION", "jitter_ms must be a whole number from 0 to 86400000"),
        (body(jitter_ms="-1"), "VALIDATION", "jitter_ms must be"),
        (body(jitter_ms=-1), "VALIDATION", "jitter_ms must be"),
        (body(end_us=1.5), "VALIDATION", "end_us"),
        (body(fires_max="9" * 19), "VALIDATION", "fires_max must be"),
        (body(fires_max="\u0663"), "VALIDATION", "fires_max must be"),
        (body(spec="e" * 201), "VALIDATION", "spec"),
        (b'{"spec": "every 1s", "spec": "every 15m", "record": {"value": 1}}', "VALIDATION", "duplicate member `spec`"),
        (b'{"spec": "every 15m", "record": {"value": 1, "value": 2}}', "VALIDATION", "duplicate member `value`"),
        (b'{"spec": "every 15m", "record": {"value": "\xff"}}', "MALFORMED_BODY", "UTF-8"),
        (b'{"spec": "every 15m", "record": {"value": ' + b"[" * 100_000, "MALFORMED_BODY", ""),
    ],
)
def test_a_wrong_body_is_a_problem(text: bytes, code: str, message: str) -> None:
    with pytest.raises(Problem) as caught:
        decode_schedule(text)
    assert caught.value.code == code
    assert message in caught.value.detail


def test_openapi_says_what_is_taken() -> None:
    for taken in (
        body(),
        body(late="fire_all", late_max_ms="5", jitter_ms=86_400_000),
        body(record={"base64": "AA=="}),
    ):
        assert SCHEMA.is_valid(json.loads(taken))
        decode_schedule(taken)
    for refused in (
        body(record={"value": 1, "timestamp_us": 5}), body(record={"value": 1, "delay_ms": 5}),
        body(record={"value": 1, "due": "2099-01-01T00:00Z"}), body(record={"value": 1, "ttl_ms": "0"}),
        body(late="never"), body(jitter_ms=86_400_001), body(paused=True),
    ):  # fmt: skip
        assert not SCHEMA.is_valid(json.loads(refused))


@pytest.mark.parametrize(
    ("details", "record"),
    [
        ((None, None, (), None, None), b'{"tombstone":true}'),
        ((b"k", b'{"bid": 1.00}', (("a", b"b"),), 2, -1),
         b'{"key":"k","value":{"bid": 1.00},"headers":[{"name":"a","value":"b"}],"partition":2,"ttl_ms":"-1"}'),
        ((b"\xff", b"\xff", (("a", b"\xff"),), None, 5_000),
         b'{"key_base64":"/w==","base64":"/w==","headers":[{"name":"a","base64":"/w=="}],"ttl_ms":"5000"}'),
    ],
)  # fmt: skip
def test_a_document_can_be_read_by_its_model_and_stored_again(details: tuple[Any, ...], record: bytes) -> None:
    info = comet.ScheduleInfo("quotes", "r\u00e9port", "every 15m", late="skip", next_us=2**53 + 1, revision=7)
    written = schedule_json(comet.ScheduleDetails(info, *details))
    assert written.endswith(b',"record":%b}' % record)
    found = json.loads(written)
    assert (found["id"], found["next_us"], found["fired_us"], found["revision"]) == (
        "r\u00e9port", "9007199254740993", None, "7",
    )  # fmt: skip
    ScheduleDocument.model_validate(found)
    again = decode_schedule(b'{"spec": "every 15m", "record": %b}' % record).record
    assert (again.key, again.value, tuple(again.headers), again.partition, again.ttl_ms) == details
