"""The JSON form of the values of `comet.Admin`, one for REST and the command line.

    dataclass      an object: its fields, then its documented properties
    mapping        an object
    64-bit number  a string, as JSON numbers lose digits in browsers
    enumeration    its word
    bytes          hexadecimal
    partitions     by topic

The annotation of a field says the rest: `Int64` for a 64-bit number, a text in `Annotated` describes it, an `Example`
is one, and `UNLISTED` leaves it out. The settings of a topic are as their table has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from comet.settings.topic import TOPIC_SETTINGS, TopicConfig, TopicSetting, plain
from comet.types import INT64, UNLISTED, Example, Int64, TopicPartition

DRY_RUN: Final = "True: nothing was changed, and the numbers are the expected effect."
_literal: Any = Literal


class DocumentMember(NamedTuple):
    """A member of a document."""

    annotation: Any
    about: str  # empty: no description
    examples: tuple[Any, ...]


@cache
def members(kind: type) -> dict[str, DocumentMember]:
    """The members of a dataclass's document by name: its own fields, those of LogFigures, its properties."""
    if kind is TopicConfig:
        return {name: _setting(row) for name, row in TOPIC_SETTINGS.items()}
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, DocumentMember] = {}
    for field in sorted(fields(kind), key=lambda one: one.kw_only is True):
        if UNLISTED not in _marks(hints[field.name]):
            found[field.name] = _member(hints[field.name])
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, property) and member.fget is not None and member.__doc__:
                annotation = get_type_hints(member.fget, include_extras=True)["return"]
                found[name] = _member(annotation)._replace(about=member.__doc__)
    return found


def _marks(annotation: Any) -> tuple[Any, ...]:
    return annotation.__metadata__ if get_origin(annotation) is Annotated else ()


def _member(annotation: Any) -> DocumentMember:
    marks = _marks(annotation)
    about = next((mark for mark in marks if isinstance(mark, str)), "")
    return DocumentMember(annotation, about, tuple(mark.value for mark in marks if isinstance(mark, Example)))


def _setting(row: TopicSetting) -> DocumentMember:
    kind = _literal[row.words] if row.words else Int64 if row.bits == 64 else int
    default = plain(row.default)
    about = row.about + (" -1: no limit." if row.unlimited else "")
    return DocumentMember(kind, about, (str(default) if kind is Int64 else default,))


def is_int64(annotation: Any) -> bool:
    """Whether values of this annotation are 64-bit numbers, or may be."""
    if get_origin(annotation) is Annotated:
        return INT64 in annotation.__metadata__ or is_int64(get_args(annotation)[0])
    return any(map(is_int64, get_args(annotation)))


def document(value: Any, kind: type | None = None) -> dict[str, Any]:
    """The JSON form of a dataclass; with `kind`, that of this base of it.

    >>> document(comet.GroupDeletion(True, "engine", offsets=3, lag=40))
    {'dry_run': True, 'group': 'engine', 'offsets': 3, 'lag': '40'}
    """
    return {
        name: _plain(getattr(value, name), member.annotation) for name, member in members(kind or type(value)).items()
    }


def _plain(value: Any, annotation: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, int):
        return str(value) if is_int64(annotation) else value
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value):
        return document(value)
    if isinstance(value, Mapping):
        return {name: _plain(one, annotation) for name, one in value.items()}
    if isinstance(value, tuple):
        if value and isinstance(value[0], TopicPartition):
            return by_topic(value)
        return [_plain(one, annotation) for one in value]
    return value


def by_topic(tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Partitions, grouped by their topic.

    >>> by_topic([TopicPartition("quotes", 0), TopicPartition("quotes", 2)])
    [{'topic': 'quotes', 'partitions': [0, 2]}]
    """
    found: dict[str, list[int]] = {}
    for topic, partition in tps:
        found.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": indexes} for topic, indexes in found.items()]
