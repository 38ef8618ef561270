"""Why conditions on JSON fields match nothing, from records that they did not match: a field that no record has, or a
comparison with another type. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from comet.filters.nodes import Comparison, Joined, JsonField, Node, Not
from comet.filters.paths import Path, entries, follow, number_in, number_of, text_of_path
from comet.filters.search_filters import Filters
from comet.filters.values import ORDERED

NAMED_MAX: Final = 8  # fields that a hint names
EXAMPLE_CHARACTERS_MAX: Final = 30


def hints(filters: Filters) -> str:
    """What to change, in sentences; empty: the conditions have nothing to explain."""
    if filters.filter is None or not (filters.missed or filters.no_json):
        return ""
    tests = list(_tests(filters.filter.node))
    if not filters.missed:
        return "The values are not JSON, so Filter finds no field in them: use Value." if tests else ""
    return " ".join(sentence for one in tests for sentence in _of(*one, filters.missed))


def _tests(node: Node, negated: bool = False) -> Iterator[tuple[Comparison, Path, bool]]:
    """The comparisons of fields, each with whether it is negated."""
    match node:
        case Not():
            yield from _tests(node.node, not negated)
        case Joined():
            for inner in node.nodes:
                yield from _tests(inner, negated)
        case Comparison() if isinstance(node.operand, JsonField):
            yield node, node.operand.path, negated


def _of(test: Comparison, path: Path, negated: bool, missed: Sequence[Any]) -> Iterator[str]:
    name = text_of_path(path)
    found = [value for document in missed for value in entries(follow(document, path))]
    if not found:
        if test.operator != "exists" or not negated:
            yield f"No record has the field {name}{_known(missed)}."
        return
    texts = [value for value in found if isinstance(value, str)]
    if test.operator == "exists" or (negated and test.operator in ("=", "in")):
        return
    literal = test.literals[0]
    if test.operator in ("~", "^=", "$="):
        if not texts:
            yield f"{name} holds {_kinds(found)}: {test.operator} looks for a part of texts, = compares."
    elif test.operator == "=":
        if not texts and not literal.bare:
            more = ": a literal in quotes is a text, so write it without" if number_of(literal.text) is not None else ""
            yield f"{name} holds {_kinds(found)}{more or f', and {literal.text} is a text'}."
    elif test.operator in ORDERED and literal.number is not None:
        if all(number_in(value) is None for value in found):
            yield f"{name} holds {_kinds(found)}, and {test.operator} {literal.text} compares numbers."
    elif test.operator in ORDERED and not texts:
        yield f"{name} holds {_kinds(found)}, and {literal.text} is a text: {test.operator} compares texts."


def _known(missed: Sequence[Any]) -> str:
    """The fields that are there instead."""
    known = list(dict.fromkeys(name for document in missed if isinstance(document, dict) for name in document))
    more = ", …" if len(known) > NAMED_MAX else ""
    return f": they have {', '.join(known[:NAMED_MAX])}{more}" if known else ""


def _kinds(found: Sequence[Any]) -> str:
    value = found[0]
    match value:
        case bool():
            return "true or false"
        case None:
            return "null"
        case str():
            shown = value[:EXAMPLE_CHARACTERS_MAX] + ("…" if len(value) > EXAMPLE_CHARACTERS_MAX else "")
            return f"texts such as “{shown}”"
        case int() | float():
            return f"numbers such as {value}"
    return "objects"
