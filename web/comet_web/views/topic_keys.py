"""The page of a topic as a table of keys: a list of keys by prefix, and one key with its revisions. Pure.

Its query parameters: `prefix`; `after`, the last key of the page before, in hex; `key`, or `key_base64` where it is not
UTF-8: the key to look up; `stale=yes`: any replica may answer.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from comet_web.components import numbers
from comet_web.document import Cell, Column, Document, Row, Table
from comet_web.facts import RecordPreview, TopicKeys
from comet_web.page_request import PageRequest
from comet_web.views.records import TEXT_CHARACTERS, line, record_link, time_text, value_cell
from comet_web.views.topic import header

KEY_BYTES_MAX: Final = 512  # of a key, prefix or `after` in an address
KEYS: Final = (
    Column("key", "Key", sortable=False),
    Column("value", "Value", sortable=False, wide=False),
    Column("revision", "Revision", numeric=True, sortable=False, title="Offset of the record that set the value"),
    Column("time", "Time", unit="UTC", sortable=False),
    Column("size", "Size", numeric=True, sortable=False, title="Size of key and value"),
)
HISTORY: Final = (
    Column("revision", "Revision", sortable=False),
    Column("value", "Value", sortable=False, wide=False),
    Column("time", "Time", unit="UTC", sortable=False),
    Column("size", "Size", numeric=True, sortable=False, title="Size of key and value"),
)


def view(facts: TopicKeys, request: PageRequest) -> Document:
    topic = facts.detail.topic.name
    keys = tuple(_key(topic, one, request) for one in facts.keys)
    history = tuple(_revision(topic, one) for one in facts.history)
    title, text = _nothing(facts, request)
    return Document(
        time_us=facts.detail.cluster.time_us,
        title=topic,
        fields={
            **header(facts.detail),
            **_looked_up(facts, request),
            "problem": Cell(facts.problem),
            "hint": Cell(_hint(facts, request)),
            "nothing": Cell(title),
            "why": Cell(text),
            "next": _next(facts, request),
        },
        tables={
            "keys": Table("keys", KEYS, keys, total=len(keys), matched=len(keys)),
            "history": Table("history", HISTORY, history, total=len(history), matched=len(history)),
        },
    )


def key_params(key: bytes) -> dict[str, str]:
    """The parameters of the address that looks up a key."""
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": b64encode(key).decode()}


def _key(topic: str, record: RecordPreview, request: PageRequest) -> Row:
    """A key as a row. One that is too long for an address leads to its record."""
    key = record.key or b""
    short = len(key) <= KEY_BYTES_MAX
    named: dict[str, str | None] = {"key": None, "key_base64": None, **key_params(key)}
    href = request.link(**named) if short else record_link(topic, record)
    return Row(
        key=f"{record.partition}-{key.hex() if short else record.offset}",
        href=href,
        cells=(
            line(key, 80),
            value_cell(record),
            Cell(str(record.offset), record.offset),
            Cell(time_text(record.timestamp_us), record.timestamp_us),
            numbers.size(record.size),
        ),
    )


def _revision(topic: str, record: RecordPreview) -> Row:
    deleted = Cell("deleted", tone="muted", title="this revision deleted the key")
    return Row(
        key=f"{record.partition}-{record.offset}",
        href=record_link(topic, record),
        label=f"revision {record.offset}",
        cells=(
            Cell(str(record.offset), record.offset),
            deleted if record.value is None else value_cell(record),
            Cell(time_text(record.timestamp_us), record.timestamp_us),
            numbers.size(record.size),
        ),
    )


def _looked_up(facts: TopicKeys, request: PageRequest) -> dict[str, Cell]:
    """The key that was looked up. Its state: "value", "deleted", "absent", "unread"; empty: no key was."""
    if facts.key is None:
        return {"state": Cell("")}
    found = {
        "key": line(facts.key, TEXT_CHARACTERS),
        "key_base64": Cell(b64encode(facts.key).decode()),
        "revision": Cell(""),
        "partition": Cell(""),
        "value": Cell(""),
    }
    if facts.problem:
        return {**found, "state": Cell("unread"), "status": Cell("not read yet", tone="muted")}
    if not facts.history:
        none = "has no value, and the log has no revision of it"
        return {**found, "state": Cell("absent"), "status": Cell(none, tone="muted")}
    if facts.expired:
        gone = "has no value: the last one has expired"
        return {**found, "state": Cell("absent"), "status": Cell(gone, tone="muted")}
    last = facts.history[0]
    age = numbers.ago(last.timestamp_us, request.now_us)
    if last.value is None:
        state, status = "deleted", f"deleted by revision {last.offset}, {age.text}"
    else:
        state, status = "value", f"revision {last.offset}, {age.text}"
    return {
        **found,
        "state": Cell(state),
        "status": Cell(status, tone="muted" if last.value is None else "", title=age.title),
        "revision": Cell(str(last.offset), last.offset),
        "partition": Cell(str(last.partition), last.partition),
        "value": value_cell(last),
    }


def _hint(facts: TopicKeys, request: PageRequest) -> str:
    if request.query.get("stale") == "yes":
        return "Any replica answers, so that values may be older than those of the leaders."
    if not facts.detail.compacted:
        return (
            "This topic is not compacted: retention deletes values by their age, size or number. Set its cleanup"
            " policy to compact on the tab Config to keep the last value of each key."
        )
    return ""


def _nothing(facts: TopicKeys, request: PageRequest) -> tuple[str, str]:
    """Why the list is empty, and what to do."""
    if facts.problem:
        return "Keys are not read yet", "This page tries again by itself."
    if request.query.get("after"):
        return "No more keys", "The keys of this page were deleted. Go back to the first page."
    if request.query.get("prefix"):
        return "No key begins with this", "A prefix is compared byte by byte: check capitals, or list all keys."
    return "No keys yet", "Set one with New key, with any producer that writes keys, or from a shell:"


def _next(facts: TopicKeys, request: PageRequest) -> Cell:
    if not facts.after:
        return Cell("")
    if len(facts.after) > KEY_BYTES_MAX:
        return Cell("More keys follow; this one is too long for an address: use a prefix, or comet kv", tone="muted")
    return Cell("Next page", href=request.link(after=facts.after.hex()))
