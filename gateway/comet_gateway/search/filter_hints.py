"""Why conditions on JSON fields match nothing, from records that they did not match: a field that no record has, or a
comparison with another type. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from comet.search.conditions import Where, entries, follow, number_in
from comet.search.filters import Filters
from comet_gateway.search.fields import name_of

NAMED_MAX: Final = 8  # fields that a hint names
EXAMPLE_CHARACTERS_MAX: Final = 30


def hints(filters: Filters) -> str:
    """What to change, in sentences; empty: the filters have nothing to explain."""
    if not filters.where or not (filters.missed or filters.no_json):
        return ""
    if not filters.missed:
        return "The values are not JSON, so Where matches none of them: use Value."
    return " ".join(sentence for where in filters.where for sentence in _of(where, filters.missed))


def _of(where: Where, missed: Sequence[Any]) -> Iterator[str]:
    name = name_of(where.path)
    found = [value for document in missed for value in entries(follow(document, where.path))]
    if not found:
        if where.operator != "exists" or not where.negated:
            yield f"No record has the field {name}{_known(missed)}."
        return
    if where.operator in ("exists", "~") or where.negated:
        if where.operator == "~" and not any(isinstance(value, str) for value in found):
            yield f"{name} holds {_kinds(found)}: ~ looks for a part of texts, = compares."
        return
    texts = [value for value in found if isinstance(value, str)]
    if where.operator == "=":
        if where.quoted and not texts:
            yield f"{name} holds {_kinds(found)}: a literal in quotes is a text, so write it without."
    elif where.number is not None:
        if all(number_in(value) is None for value in found):
            yield f"{name} holds {_kinds(found)}, and {where.operator} {where.literal} compares numbers."
    elif not texts:
        yield f"{name} holds {_kinds(found)}, and {where.literal} is a text: {where.operator} compares texts."


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
