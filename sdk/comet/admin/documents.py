"""The JSON form of the values of `comet.Admin`, one for REST and the command line.

    dataclass      an object: its fields, then its documented properties
    64-bit number  a string, as JSON numbers lose digits in browsers
    enumeration    its word
    bytes          hexadecimal
    partitions     by topic

The annotation of a field says the rest: `Int64` for a 64-bit number, and a text in `Annotated` describes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from comet.types import INT64, TopicPartition

DRY_RUN: Final = "True: nothing was changed, and the numbers are the expected effect."


@cache
def members(kind: type) -> dict[str, tuple[Any, str]]:
    """The members of a dataclass's document: annotation and description of each."""
    hints = get_type_hints(kind, include_extras=True)
    found = {field.name: (hints[field.name], described(hints[field.name])) for field in fields(kind)}
    for name, member in vars(kind).items():
        if isinstance(member, property) and member.fget is not None and member.__doc__:
            found[name] = (get_type_hints(member.fget, include_extras=True)["return"], member.__doc__)
    return found


def described(annotation: Any) -> str:
    """The description in an annotation; empty: none."""
    if get_origin(annotation) is not Annotated:
        return ""
    return next((text for text in annotation.__metadata__ if isinstance(text, str)), "")


def is_int64(annotation: Any) -> bool:
    """Whether values of this annotation are 64-bit numbers, or may be."""
    if get_origin(annotation) is Annotated:
        return INT64 in annotation.__metadata__ or is_int64(get_args(annotation)[0])
    return any(map(is_int64, get_args(annotation)))


def document(value: Any) -> dict[str, Any]:
    """The JSON form of a dataclass.

    >>> document(comet.GroupDeletion(True, "engine", offsets=3, lag=40))
    {'dry_run': True, 'group': 'engine', 'offsets': 3, 'lag': '40'}
    """
    kind: Any = type(value)
    return {name: _plain(getattr(value, name), annotation) for name, (annotation, _) in members(kind).items()}


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
