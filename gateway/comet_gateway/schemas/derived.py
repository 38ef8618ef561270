"""Models of answers that are derived from the SDK's types: `comet.admin.documents` has their JSON form."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import Field, create_model

from comet.admin.documents import is_int64, members
from comet.types import TopicPartition
from comet_gateway.schemas.common import Int64, Model

_EXAMPLE: Final = re.compile(r"\n\s*>>> .*", re.DOTALL)


class TopicPartitions(Model):
    topic: str
    partitions: list[int]


@cache
def model_of(kind: type) -> type[Model]:
    """The model of a dataclass's document, with the same name and descriptions."""
    found: dict[str, Any] = {
        name: (_type(annotation), Field(description=about or None))
        for name, (annotation, about) in members(kind).items()
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
    if origin is tuple:
        return list[TopicPartitions] if arguments[0] is TopicPartition else list[_type(arguments[0])]  # type: ignore[misc]
    if isinstance(annotation, type) and is_dataclass(annotation):
        return model_of(annotation)
    return annotation
