"""Models of answers that are derived from the SDK's types: `comet.admin.documents` has their JSON form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import Field, create_model

from comet.admin.documents import is_int64, members
from comet.settings.topic import TOPIC_SETTINGS, SettingSource
from comet.types import TopicPartition
from comet_gateway.schemas.common import Int64, Model

_literal: Any = Literal
if TYPE_CHECKING:
    SettingName = str
else:
    SettingName = _literal[tuple(TOPIC_SETTINGS)]
_EXAMPLE: Final = re.compile(r"\n\s*>>> .*", re.DOTALL)


class TopicPartitions(Model):
    topic: str
    partitions: list[int]


@cache
def model_of(kind: type) -> type[Model]:
    """The model of a dataclass's document, with the same name and descriptions."""
    found: dict[str, Any] = {
        name: (_type(one.annotation), Field(description=one.about or None, examples=list(one.examples) or None))
        for name, one in members(kind).items()
    }
    text = " ".join(_EXAMPLE.sub("", kind.__doc__ or "").split())
    return create_model(kind.__name__, __base__=Model, __doc__=text, **found)


def _type(annotation: Any) -> Any:
    """The type of a member in JSON."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        whole = annotation.__origin__ is int and is_int64(annotation)
        return Int64 if whole else _type(annotation.__origin__)
    if origin in (Union, UnionType):
        return reduce(or_, (None if one is type(None) else _type(one) for one in arguments))
    if origin is Mapping:
        return dict[SettingName if arguments[1] is SettingSource else str, _type(arguments[1])]  # type: ignore[misc]
    if origin is tuple:
        return list[TopicPartitions] if arguments[0] is TopicPartition else list[_type(arguments[0])]  # type: ignore[misc]
    if isinstance(annotation, type) and is_dataclass(annotation):
        return model_of(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _literal[tuple(one.value for one in annotation)]
    return str if annotation is bytes else annotation
