"""Any event gives one line of valid JSON with its fields, and one event of text."""

from __future__ import annotations

import json
import logging
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from comet.errors import NotLeader
from comet.processes.logs import LINE_BYTES_MAX, SERVER_TEXT, JsonLines, TextLines

OWN = {"ts", "level", "logger", "msg", "exception", "stack", "fields_left_out"}
TEXT = st.text(st.characters(exclude_categories=()), max_size=40) | st.sampled_from(
    ["\n", "\x1b[31m", "%s", "\ud800", "名"]
)
LONG = st.builds(lambda text, times: text * times, TEXT, st.integers(1, 2_000))
VALUE = st.one_of(
    LONG, st.integers(), st.floats(), st.binary(), st.booleans(), st.none(), st.lists(TEXT, max_size=3),
    st.builds(NotLeader, TEXT),
)  # fmt: skip
NAMES = TEXT.filter(
    lambda name: (
        name not in logging.makeLogRecord({}).__dict__
        and name not in {"message", "asctime", "taskName", "color_message"}
    )
)


def refuse(word: str) -> object:
    raise AssertionError(f"{word} is not JSON")


@given(
    message=LONG, arguments=st.lists(VALUE, max_size=3), extra=st.dictionaries(NAMES, VALUE, max_size=30),
    name=TEXT, created=st.floats(0, 2e11), error=st.none() | st.builds(ValueError, LONG) | st.builds(NotLeader, LONG),
)  # fmt: skip
@example(message="x", arguments=[], extra={"": 1, "_": 2, "ts": 3, "ts_": 4}, name="", created=0.0, error=None)
def test_any_event_is_one_line(
    message: str, arguments: list[Any], extra: dict[str, Any], name: str, created: float, error: Exception | None
) -> None:
    exc_info = None if error is None else (type(error), error, None)
    one = logging.getLogger("comet").makeRecord(
        name, logging.ERROR, "", 1, message, tuple(arguments), exc_info, extra=extra
    )
    one.created = created
    line = JsonLines({"broker": 1}).format(one)
    assert line.isascii() and "\n" not in line and len(line) < LINE_BYTES_MAX
    pairs: list[tuple[str, Any]] = json.loads(line, object_pairs_hook=list, parse_constant=refuse)
    found = dict(pairs)
    assert len(found) == len(pairs), "a name twice"
    assert [*found][:4] == ["ts", "level", "logger", "msg"]
    line.encode().decode("utf-8")
    json.dumps(found, ensure_ascii=False).encode()  # without lone surrogates
    fields = found.keys() - OWN
    given = len(extra.keys() | {"broker"} | ({"code"} if error_in(arguments, error) else set()))
    assert len(fields) + found.get("fields_left_out", 0) in {given, given + 1}  # the exception may be left out, too
    for key, value in extra.items():
        if key not in OWN and key in found and isinstance(value, bool):
            assert found[key] == value
    first, *others = TextLines(SERVER_TEXT).format(one).split("\n")
    assert first.isprintable() and first[:4].isdigit()
    assert all(other.startswith("  ") and other.isprintable() for other in others)


def error_in(arguments: list[Any], error: Exception | None) -> bool:
    return any(isinstance(one, NotLeader) for one in (*arguments, error))
