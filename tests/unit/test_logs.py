"""The lines of a process's log: text for people, JSON for programs."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from comet.errors import InvalidArgument, NotLeader
from comet.processes.logs import (
    FIELD_BYTES_MAX,
    LINE_BYTES_MAX,
    SERVER_TEXT,
    JsonLines,
    TextLines,
    log_context,
    log_format_of,
    logs_json,
    message_in,
    set_up_logging,
)
from comet_gateway.http.problems import Problem

HOSTILE = "evil\n2026-11-30 15:00:15,123 ERROR comet: forged\x1b[2J\x9b\u2028\u202e\r\x00\x7fend"


def record(message: object, *args: object, exc_info: Any = None, **extra: object) -> logging.LogRecord:
    return logging.getLogger("comet.test").makeRecord(
        "comet.test", logging.WARNING, __file__, 1, message, args, exc_info, extra=extra
    )


def parsed(one: logging.LogRecord, **of_process: object) -> dict[str, Any]:
    line = JsonLines(of_process).format(one)
    assert "\n" not in line and line.isascii() and len(line) < LINE_BYTES_MAX
    found: dict[str, Any] = json.loads(line, parse_constant=_refuse)
    return found


def _refuse(word: str) -> object:
    raise AssertionError(f"{word} is not JSON")


def raised(error: BaseException) -> tuple[type[BaseException], BaseException, Any]:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - any may be logged
        return type(caught), caught, caught.__traceback__


class Unshowable:
    def __str__(self) -> str:
        raise ValueError("cannot be shown")

    @property
    def log_fields(self) -> Mapping[str, object]:
        raise RuntimeError("nor read")


class Entity:
    log_fields: ClassVar = {"topic": "quotes", "partition": 3, "name": "a name", "msg": "another"}

    def __str__(self) -> str:
        return "quotes/3"


def test_a_line_of_json_has_the_event_its_time_in_utc_and_its_fields() -> None:
    one = record("cannot follow %s", Entity(), offset=7, topic="trades")
    one.created = datetime(2026, 11, 30, 15, 0, 15, 123_456, UTC).timestamp()
    assert parsed(one, broker=1) == {
        "ts": "2026-11-30T15:00:15.123Z", "level": "warning", "logger": "comet.test", "msg": "cannot follow quotes/3",
        "broker": 1, "topic": "trades", "partition": 3, "offset": 7, "name": "a name", "msg_": "another",
    }  # fmt: skip


def test_an_error_gives_its_code_as_an_argument_and_as_an_exception() -> None:
    error = NotLeader("ask another", details={"topic": "quotes", "partition": "3", "secret": "x"})
    fields = {"code": "NOT_LEADER", "topic": "quotes", "partition": 3}
    assert parsed(record("refused: %s", error)).items() >= fields.items()
    found = parsed(record("failed", exc_info=raised(error)))
    assert found.items() >= fields.items() and found["msg"] == "failed" and "secret" not in found
    assert parsed(record("refused: %s", Problem("TOO_MANY_REQUESTS", "later")))["code"] == "TOO_MANY_REQUESTS"
    assert found["exception"].startswith("Traceback") and found["exception"].endswith("NotLeader: ask another")


def test_fields_named_as_the_formatter_names_its_own_are_kept() -> None:
    found = parsed(
        record("x", ts=1, level=2, logger=3, exception=4, stack=5, fields_left_out=6, level_=7, broker=8), broker=9
    )
    assert found["level"] == "warning" and found["broker"] == 8
    kept = {"ts_": 1, "level_": 2, "logger_": 3, "exception_": 4, "stack_": 5, "fields_left_out_": 6, "level__": 7}
    assert found.items() >= kept.items()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None), (True, True), (1.5, 1.5), ((1 << 53) - 1, (1 << 53) - 1), (1 << 53, str(1 << 53)),
        (float("nan"), "nan"), (float("-inf"), "-inf"), (10**5000, "<int>"), (b"a\xff\n", "a\\xff\n"),
        ("\ud800\U0001f600\x00", "\\ud800\U0001f600\x00"), (["a", 1], "['a', 1]"), (Unshowable(), "<Unshowable>"),
    ],
    ids=[str(number) for number in range(12)],
)  # fmt: skip
def test_values_that_json_lacks_become_text(value: object, shown: object) -> None:
    assert parsed(record("x", value=value))["value"] == shown


def test_arguments_that_do_not_fit_cost_no_line() -> None:
    assert parsed(record("%d of %d", "one"))["msg"] == "%d of %d one"
    assert parsed(record("%s", Unshowable()))["msg"] == "%s <Unshowable>"
    assert "%d one" in TextLines(SERVER_TEXT).format(record("%d", "one"))


def test_long_values_are_cut_and_an_exception_keeps_its_end() -> None:
    found = parsed(record("m" * 50_000, field="\x01" * 5_000, exc_info=raised(ValueError("e" * 50_000 + " the end"))))
    assert found["msg"].startswith("mmm") and found["msg"].endswith("m…") and found["field"].endswith("…")
    assert len(json.dumps(found["field"])) <= FIELD_BYTES_MAX
    assert found["exception"].startswith("…") and found["exception"].endswith("the end")
    many = parsed(record("x", **{f"field{number}": "v" * 2_000 for number in range(100)}))
    shown = [name for name in many if name.startswith("field") and name != "fields_left_out"]
    assert many["fields_left_out"] == 100 - len(shown) > 0


def test_a_line_of_text_is_one_line_that_a_client_cannot_break() -> None:
    line = TextLines(SERVER_TEXT).format(record("login of %s refused", HOSTILE))
    escaped = "evil\\n2026-11-30 15:00:15,123 ERROR comet: forged\\u001b[2J\\u009b\\u2028\\u202e\\r\\u0000\\u007fend"
    assert line.isprintable() and line.endswith(f" WARNING comet.test: login of {escaped} refused")
    assert line[:4].isdigit()


def test_only_an_event_begins_at_the_margin() -> None:
    lines = TextLines(SERVER_TEXT).format(record("failed", exc_info=raised(ValueError(HOSTILE)))).split("\n")
    assert lines[0].endswith(" failed") and lines[1] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
    assert "  2026-11-30 15:00:15,123 ERROR comet: forged\\u001b[2J\\u009b\\u2028\\u202e\\r\\u0000\\u007fend" in lines


def test_a_context_ends_for_tasks_that_outlive_it() -> None:
    with log_context(request_id="r-1", trace_id=""):
        inside = parsed(record("x"))
        task = contextvars.copy_context()
        assert task.run(lambda: parsed(record("x")))["request_id"] == "r-1"
        assert TextLines(SERVER_TEXT).format(record("x")).endswith(" x [r-1]")
        assert TextLines(SERVER_TEXT).format(record("x [r-1]")).endswith(": x [r-1]")
        assert parsed(record("x", request_id="given"))["request_id"] == "given"
    assert inside["request_id"] == "r-1" and "trace_id" not in inside
    assert "request_id" not in parsed(record("x"))
    assert "request_id" not in task.run(lambda: parsed(record("x")))


def test_people_are_shown_the_message_of_a_line() -> None:
    assert message_in(JsonLines().format(record("no gateway: %s", "why"))) == "no gateway: why"
    for line in ("plain", '{"ts":"cut off', '{"ts":"now"}', '{"error": {}}', ""):
        assert message_in(line) is line


# ---- set up


@contextmanager
def bare_process() -> Iterator[io.StringIO]:
    """A process without handlers, and its stderr. A fixture would come before pytest's own handlers."""
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, threading.excepthook
    root.handlers[:] = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        for name in ("excepthook", "unraisablehook"):
            patch.setattr(sys, name, getattr(sys, name))
        patch.setattr(sys, "stderr", found := io.StringIO())
        try:
            yield found
        finally:
            logging.captureWarnings(False)
            threading.excepthook = hook
            root.handlers[:] = handlers
            root.setLevel(level)


def test_the_last_set_up_holds() -> None:
    with bare_process() as stderr:
        set_up_logging("warning", "json", broker=1)
        assert logs_json()
        logging.getLogger("comet.test").info("not shown")
        logging.getLogger("comet.test").warning("shown %d", 1)
        assert json.loads(stderr.getvalue())["broker"] == 1
        set_up_logging("info", "text")
        assert not logs_json()
        logging.getLogger("comet.test").info("now shown")
        assert stderr.getvalue().splitlines()[1].endswith(" INFO comet.test: now shown")
        assert len(logging.getLogger().handlers) == 1


def test_an_application_keeps_its_own_log() -> None:
    with bare_process():
        theirs = logging.NullHandler()
        logging.getLogger().addHandler(theirs)
        set_up_logging("debug", "json")
        assert logging.getLogger().handlers == [theirs] and not logs_json()


def test_warnings_and_errors_that_end_a_thread_are_lines_of_json() -> None:
    def fail() -> None:
        raise ValueError("a bug")

    with bare_process() as stderr:
        set_up_logging("warning", "json")
        warnings.warn("an odd use", UserWarning, stacklevel=1)
        sys.excepthook(*raised(ValueError("a bug")))
        sys.excepthook(*raised(KeyboardInterrupt()))
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    first, *others = map(json.loads, stderr.getvalue().splitlines())
    assert "an odd use" in first["msg"] and first["logger"] == "py.warnings"
    assert [one["exception"].splitlines()[-1] for one in others] == ["ValueError: a bug"] * 2


def test_the_environment_chooses_the_format() -> None:
    assert [log_format_of({}), log_format_of({"COMET_LOG_FORMAT": ""})] == ["text", "text"]
    assert log_format_of({"COMET_LOG_FORMAT": "json"}) == "json"
    with pytest.raises(InvalidArgument, match="COMET_LOG_FORMAT must be one of text, json, not 'xml'"):
        log_format_of({"COMET_LOG_FORMAT": "xml"})
