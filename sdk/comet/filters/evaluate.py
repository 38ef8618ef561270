"""Evaluates a filter over the columns of a batch: each comparison takes rows, and returns those for which it is true.

    !(a && b)  ─► !a || !b       negations move to the comparisons, so that no step needs to know what is unknown:
                                 a comparison is true, or its contrary is, or neither
    a && b                       the cheaper one first, the other on the rows that are left
    a || b                       the other on the rows that are not there yet

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, ne
from typing import Any, Final, Protocol

import msgspec

from comet.filters.columns import ColumnReader, Filterable, Projection
from comet.filters.nodes import Comparison, Joined, JsonField, Node, Not, Root, tests_of
from comet.filters.paths import Path
from comet.filters.values import ORDERED, of_document, of_value, of_values

Rows = Sequence[int]

UNSET: Final = msgspec.UNSET
_NUMBERS: Final = frozenset({int, float})
_CONTRARY: Final = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}
_NEEDLES_MAX: Final = 8
_PLAIN: Final = frozenset('"\\')


class Step(Protocol):
    """One comparison, or several. The cheapest have the lowest cost."""

    @property
    def cost(self) -> int: ...
    def rows(self, reader: ColumnReader, rows: Rows) -> Rows: ...


class FilterPlan:
    """A compiled filter. Used by any number of readers, in one thread at a time.

    `literals`: for each comparison that must be true, texts of which a value must have one.
    """

    def __init__(self, node: Node) -> None:
        fields = [test.operand.path for test in tests_of(node) if isinstance(test.operand, JsonField)]
        self.projection = _projection(fields)
        self.names = {} if self.projection is None else {name: at for at, name in enumerate(_names(fields))}
        self.literals: list[tuple[bytes, ...]] = []
        self._step = self._compiled(node, True, required=True)

    def rows(self, batch: Filterable, rows: Rows) -> Rows:
        """The rows of these that match, in order."""
        reader = ColumnReader(batch, self.projection)
        return self._step.rows(reader, rows)

    def _compiled(self, node: Node, wanted: bool, *, required: bool = False) -> Step:
        match node:
            case Not():
                return self._compiled(node.node, not wanted, required=required)
            case Joined():
                if (node.word == "and") is wanted:
                    steps = [self._compiled(inner, wanted, required=required) for inner in node.nodes]
                    return _All(sorted(steps, key=lambda step: step.cost))
                steps = [self._compiled(inner, wanted) for inner in node.nodes]
                return _Any(sorted(steps, key=lambda step: step.cost))
        if isinstance(node.operand, Root):
            return _of_root(node, node.operand, wanted)
        needles = _needles(node) if wanted else ()
        if needles and required:
            self.literals.append(needles)
        return self._of_field(node, node.operand.path, wanted, needles)

    def _of_field(self, test: Comparison, path: Path, wanted: bool, needles: tuple[bytes, ...]) -> Step:
        if self.projection is None:
            return _OfDocument(test, path, wanted, needles)
        at, rest = self.names[str(path[0])], path[1:]
        return _OfField(test, path, wanted, needles, attrgetter(f"f{at}"), _condition(test, rest, wanted))


def _names(paths: list[Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(path[0]) for path in paths))


def _projection(paths: list[Path]) -> Projection | None:
    """None if a path does not begin with a name, or msgspec takes no field of it."""
    if not paths or not all(path and isinstance(path[0], str) for path in paths):
        return None
    try:
        return Projection(_names(paths))
    except ValueError:  # a name with a quotation mark, a backslash or a control character
        return None


def _needles(test: Comparison) -> tuple[bytes, ...]:
    """Texts of which a value must have one for the comparison to be true, unless JSON escapes a letter. None if it may
    be true of a number, too."""
    if test.operator not in ("=", "in", "^=", "$=") or len(test.literals) > _NEEDLES_MAX:
        return ()
    found = []
    for literal in test.literals:
        if literal.bare or not literal.text or not literal.text.isprintable() or _PLAIN.intersection(literal.text):
            return ()
        begin = "" if test.operator == "$=" else '"'
        end = "" if test.operator == "^=" else '"'
        found.append(f"{begin}{literal.text}{end}".encode())
    return tuple(found)


# ---- joined


@dataclass(frozen=True, slots=True)
class _All:
    steps: Sequence[Step]

    @property
    def cost(self) -> int:
        return self.steps[-1].cost

    def rows(self, reader: ColumnReader, rows: Rows) -> Rows:
        for step in self.steps:
            if not rows:
                break
            rows = step.rows(reader, rows)
        return rows


@dataclass(frozen=True, slots=True)
class _Any:
    steps: Sequence[Step]

    @property
    def cost(self) -> int:
        return self.steps[-1].cost

    def rows(self, reader: ColumnReader, rows: Rows) -> Rows:
        found: set[int] = set()
        for step in self.steps:
            left = [row for row in rows if row not in found] if found else rows
            found.update(step.rows(reader, left))
        return [row for row in rows if row in found]


# ---- fields of the value


@dataclass(frozen=True, slots=True)
class _OfDocument:
    """A comparison of a field in whole documents."""

    test: Comparison
    path: Path
    wanted: bool
    needles: tuple[bytes, ...]
    cost: int = 4

    def rows(self, reader: ColumnReader, rows: Rows) -> Rows:
        rows = reader.having(self.needles, rows) if self.needles else rows
        reader.documents(rows)
        unreadable = reader.unreadable
        return [row for row in rows if self.holds(reader.general[row]) or row in unreadable]

    def holds(self, document: Any) -> bool:
        return of_document(self.test, self.path, document) is self.wanted


Condition = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _OfField:
    """A comparison of a field of a projected Struct."""

    test: Comparison
    path: Path
    wanted: bool
    needles: tuple[bytes, ...]
    field: Callable[[Any], Any]
    condition: Condition
    cost: int = 3

    def rows(self, reader: ColumnReader, rows: Rows) -> Rows:
        rows = reader.having(self.needles, rows) if self.needles else rows
        documents = reader.documents(rows)
        general, unreadable = reader.general, reader.unreadable
        if not general and not unreadable:
            return self._fast(rows, map(self.field, map(documents.__getitem__, rows)))
        return [
            row
            for row in rows
            if (self._holds(general[row]) if row in general else self.condition(self.field(documents[row])))
            or row in unreadable
        ]

    def _fast(self, rows: Rows, values: Any) -> Rows:
        """The commonest comparisons without a Python call for each row."""
        test, condition, wanted = self.test, self.condition, self.wanted
        if len(self.path) == 1 and test.operator == "=" and wanted and not test.literals[0].bare:
            text = test.literals[0].text
            return [
                row
                for row, value in zip(rows, values, strict=True)
                if value == text or (value.__class__ is list and condition(value))
            ]
        if len(self.path) == 1 and test.operator in ORDERED and test.literals[0].number is not None:
            number = test.literals[0].number
            ordered = ORDERED[test.operator if wanted else _CONTRARY[test.operator]]
            return [
                row
                for row, value in zip(rows, values, strict=True)
                if (ordered(value, number) if value.__class__ in _NUMBERS else value is not UNSET and condition(value))
            ]
        return [row for row, value in zip(rows, values, strict=True) if condition(value)]

    def _holds(self, document: Any) -> bool:
        return of_document(self.test, self.path, document) is self.wanted


def _condition(test: Comparison, rest: Path, wanted: bool) -> Condition:
    """Whether the value of a projected field, UNSET if it is absent, makes the comparison `wanted`."""
    if test.operator == "exists":
        if not rest:
            return lambda value: (value is not UNSET) is wanted
        return lambda value: (value is not UNSET and of_document(test, rest, value) is True) is wanted
    if rest:
        return lambda value: value is not UNSET and of_document(test, rest, value) is wanted

    def holds(value: Any) -> bool:
        if value.__class__ is list:
            return of_values(test, [value]) is wanted
        return value is not UNSET and of_value(test, value) is wanted

    return holds


# ---- parts of the record beside its value


def _of_root(test: Comparison, root: Root, wanted: bool) -> Step:
    match root.name:
        case "key":
            return _OfKey(test, wanted)
        case "header":
            return _OfHeader(test, root.header, wanted)
        case "tombstone":
            return _OfTombstone((test.literals[0].text == "true") is wanted)
    return _OfNumber(test, root.name, wanted)


@dataclass(frozen=True, slots=True)
class _OfKey:
    test: Comparison
    wanted: bool
    cost: int = 1

    def rows(self, reader: ColumnReader, rows: Rows) -> Rows:
        test, wanted, keys = self.test, self.wanted, reader.batch.keys
        if test.operator == "exists":
            return [row for row in rows if (keys[row] is not None) is wanted]
        if test.operator == "=" and wanted:
            wished = test.literals[0].text.encode()
            if len(rows) == reader.count:
                return [row for row, one in enumerate(keys) if one == wished]
            return [row for row in rows if keys[row] == wished]
        if test.operator == "in" and wanted:
            chosen = {literal.text.encode() for literal in test.literals}
            return [row for row in rows if keys[row] in chosen]
        return [row for row in rows if (key := keys[row]) is not None and of_value(test, _text(key)) is wanted]


@dataclass(frozen=True, slots=True)
class _OfHeader:
    test: Comparison
    name: str
    wanted: bool
    cost: int = 2

    def rows(self, reader: ColumnReader, rows: Rows) -> Rows:
        headers = reader.batch.headers
        return [row for row in rows if self._of_list(headers[row]) is self.wanted]

    def _of_list(self, headers: Sequence[tuple[str, bytes]]) -> bool | None:
        found = [_text(value) for name, value in headers if name == self.name]
        return bool(found) if self.test.operator == "exists" else of_values(self.test, found)


@dataclass(frozen=True, slots=True)
class _OfNumber:
    test: Comparison
    name: str
    wanted: bool
    cost: int = 0

    def rows(self, reader: ColumnReader, rows: Rows) -> Rows:
        batch, numbers = reader.batch, [int(literal.text) for literal in self.test.literals]
        match self.name:
            case "partition":
                return rows if self._holds(numbers)(batch.partition) else []
            case "schema":
                schema = batch.stored[0].header.schema_id
                return rows if schema and self._holds(numbers)(schema) else []
            case "size":
                size_of, holds = batch.size_of, self._holds(numbers)
                return [row for row in rows if holds(size_of(row))]
        column = batch.timestamps if self.name == "timestamp" else batch.offsets
        holds = self._holds(numbers)
        return [row for row in rows if holds(column[row])]

    def _holds(self, numbers: list[int]) -> Callable[[int], bool]:
        operator, wanted, number = self.test.operator, self.wanted, numbers[0]
        if operator == "in":
            chosen = frozenset(numbers)
            return lambda value: (value in chosen) is wanted
        if operator == "=":
            return number.__eq__ if wanted else lambda value: ne(value, number)
        ordered = ORDERED[operator if wanted else _CONTRARY[operator]]
        return lambda value: ordered(value, number)


@dataclass(frozen=True, slots=True)
class _OfTombstone:
    wanted: bool
    cost: int = 1

    def rows(self, reader: ColumnReader, rows: Rows) -> Rows:
        values, unreadable = reader.values, reader.unreadable
        return [row for row in rows if (values[row] is None and row not in unreadable) is self.wanted]


def _text(value: bytes) -> str | bytes:
    """A key or header as text; of no type that a comparison knows, if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
