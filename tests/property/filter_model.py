"""A naive reading of filters, for tests: one record at a time, JSON by the standard library, nothing clever."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from comet.filters.nodes import Comparison, Joined, Literal, Node, Not, Root

NO_JSON = object()


class Seen(NamedTuple):
    """A record, as a filter sees it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_us: int = 0
    offset: int = 0
    partition: int = 0
    schema: int = 0


class Strange:
    """Of a type that no comparison knows."""


def read(value: bytes | None) -> Any:
    def number(text: str) -> Any:
        found = float(text)
        return found if math.isfinite(found) else Strange()

    def whole(text: str) -> Any:
        return int(text) if len(text.lstrip("-")) <= 4_300 else Strange()

    def constant(text: str) -> Any:
        raise ValueError(text)

    if value is None:
        return NO_JSON
    try:
        text = value.decode()
        found = json.loads(text, parse_float=number, parse_int=whole, parse_constant=constant)
        json.dumps(found, ensure_ascii=False, default=lambda _: None).encode()
    except (ValueError, RecursionError):
        return NO_JSON
    return found


def at(value: Any, path: tuple[str | int, ...]) -> list[Any]:
    if not path:
        return [value]
    part, *rest = path
    if isinstance(part, int):
        return at(value[part], tuple(rest)) if isinstance(value, list) and part < len(value) else []
    if isinstance(value, dict):
        return at(value[part], tuple(rest)) if part in value else []
    if isinstance(value, list):
        return [end for one in value if isinstance(one, dict) and part in one for end in at(one[part], tuple(rest))]
    return []


def says(node: Node, record: Seen) -> bool | None:
    """True, False, or None: unknown."""
    match node:
        case Not():
            inner = says(node.node, record)
            return None if inner is None else not inner
        case Joined():
            all_of = [says(one, record) for one in node.nodes]
            decides = node.word == "or"
            if decides in all_of:
                return decides
            return None if None in all_of else not decides
    return test(node, record)


def test(node: Comparison, record: Seen) -> bool | None:
    if isinstance(node.operand, Root):
        found = of_root(node.operand, record)
    else:
        document = read(record.value)
        if document is NO_JSON:
            return None
        found = at(document, node.operand.path)
    if node.operator == "exists":
        return bool(found)
    if not found:
        return None
    answers = [compare(node, one) for value in found for one in (value if isinstance(value, list) else [value])]
    return True if True in answers else None if None in answers else False


def of_root(root: Root, record: Seen) -> list[Any]:
    match root.name:
        case "key":
            return [] if record.key is None else [as_text(record.key)]
        case "header":
            return [as_text(value) for name, value in record.headers if name == root.header]
        case "tombstone":
            return [record.value is None]
        case "timestamp":
            return [record.timestamp_us]
        case "schema":
            return [record.schema] if record.schema else []
        case "size":
            return [len(record.key or b"") + len(record.value or b"")]
    return [getattr(record, root.name)]


def as_text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Strange()


def numeric(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_of(text: str) -> int | float | None:
    if text != text.strip() or text[:1] not in "-0123456789" or len(text) > 500:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if numeric(found) else None


def compare(node: Comparison, value: Any) -> bool | None:
    literal = node.literals[0]
    match node.operator:
        case "=":
            return equal(literal, value)
        case "in":
            answers = [equal(one, value) for one in node.literals]
            return True if True in answers else None if None in answers else False
        case "~" | "^=" | "$=":
            if not isinstance(value, str):
                return None
            if node.operator == "~":
                return literal.text.casefold() in value.casefold()
            return value.startswith(literal.text) if node.operator == "^=" else value.endswith(literal.text)
    left: Any = value
    right: Any = number_of(literal.text) if literal.bare else literal.text
    if isinstance(right, str):
        if not isinstance(left, str):
            return None
    else:
        left = number_of(left) if isinstance(left, str) else left
        if not numeric(left):
            return None
    return bool({">": left > right, ">=": left >= right, "<": left < right, "<=": left <= right}[node.operator])


def equal(literal: Literal, value: Any) -> bool | None:
    if isinstance(value, str):
        return value == literal.text
    if not literal.bare:
        return None
    if literal.text == "null":
        return value is None
    if literal.text in ("true", "false"):
        return (value is True) == (literal.text == "true") if isinstance(value, bool) else None
    return bool(value == number_of(literal.text)) if numeric(value) else None
