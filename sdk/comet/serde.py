"""Serdes: how a value of a Python type becomes the bytes of a record, and back.

    bytes                                         as they are
    str                                           UTF-8
    dict, list, int, float, bool, Any, unions …   JSON, by msgspec
    dataclass, msgspec.Struct, TypedDict,         a JSON object, by msgspec
    a class marked with @comet.model
    pydantic model or dataclass                   a JSON object, by pydantic

A serde checks fully when it decodes. `encode` checks the class of the value and trusts its fields, as msgspec and
pydantic do; `encode_checked`, which producers use, decodes the bytes again. NaN and infinity become null in JSON.

msgspec is imported with the first serde, pydantic only ever by the program that uses it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import UnionType
from typing import Annotated, Any, Final, Generic, NoReturn, TypeVar, dataclass_transform, overload

from comet.errors import InvalidArgument, SerdeError

T = TypeVar("T")

_CODECS_MAX: Final = 256  # types whose serde is kept
_FIELD_IN_MESSAGE: Final = re.compile(r"`\$\.?([^`]*)`$|field `([^`]+)`")


class Serde(Generic[T]):
    """Encodes and decodes the values of one type. Immutable, shared, safe in any thread.

    Get one from serde_for.
    """

    __slots__ = ("_accepts", "_decode", "_encode", "_errors", "_has_fields", "_refuses", "type")

    def __init__(
        self,
        kind: Any,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        *,
        errors: tuple[type[Exception], ...],
        accepts: tuple[type, ...] = (object,),
        refuses: tuple[type, ...] = (),
        has_fields: bool = False,
    ) -> None:
        self.type = kind
        self._encode = encode
        self._decode = decode
        self._errors = errors  # the exceptions of the two functions for an invalid value
        self._accepts = accepts  # classes that `encode` takes,
        self._refuses = refuses  # except these subclasses of them
        self._has_fields = has_fields  # annotated ones, which nothing has checked when a value was made

    def __repr__(self) -> str:
        return f"<Serde of {self.name}>"

    @property
    def name(self) -> str:
        """The type's name, as in source code."""
        return _name(self.type)

    def encode(self, value: T) -> bytes:
        """Encodes a value as the bytes of a record. Raises SerdeError, naming the type.

        >>> serde_for(dict).encode({"symbol": "EURUSD"})
        b'{"symbol":"EURUSD"}'
        """
        if not isinstance(value, self._accepts) or isinstance(value, self._refuses):
            raise SerdeError(f"cannot encode {_name(type(value))} as {self.name}", details={"type": self.name})
        try:
            return self._encode(value)
        except self._errors as error:
            self._refuse("encode", error, {})

    def encode_checked(self, value: T) -> bytes:
        """As `encode`, and checks the fields of a dataclass or msgspec.Struct against their annotations: a written
        value can be read as this type. Pydantic models check themselves when they are made.

        >>> @model
        ... class Quote:
        ...     symbol: str
        ...     bid: float
        >>> serde_for(Quote).encode_checked(Quote("EURUSD", "nan?"))
        Traceback (most recent call last):
            ...
        comet.errors.SerdeError: cannot write as Quote, field 'bid': Expected `float`, got `str` - at `$.bid`
        """
        data = self.encode(value)
        if self._has_fields:
            try:
                self._decode(data)
            except self._errors as error:
                self._refuse("write", error, {})
        return data

    def decode(self, data: bytes) -> T:
        """Decodes the bytes of a record. Raises SerdeError, naming the type and the field.

        >>> serde_for(dict).decode(b'{"symbol":"EURUSD"}')
        {'symbol': 'EURUSD'}
        """
        try:
            return self._decode(data)
        except self._errors as error:
            self._refuse("decode", error, {})

    def decode_many(self, values: Sequence[bytes]) -> list[T]:
        """Decodes the values of a batch. Raises SerdeError with the index of the first invalid one.

        >>> serde_for(int).decode_many([b"1", b"2"])
        [1, 2]
        """
        try:
            return list(map(self._decode, values))
        except self._errors:
            return [self._decode_at(index, value) for index, value in enumerate(values)]

    def _decode_at(self, index: int, data: bytes) -> T:
        try:
            return self._decode(data)
        except self._errors as error:
            self._refuse(f"decode value {index}", error, {"index": str(index)})

    def refusing(self, action: str, function: Callable[[Any], T], value: Any) -> T:
        """The function's result; raises SerdeError if it does not accept the value."""
        try:
            return function(value)
        except self._errors as error:
            self._refuse(action, error, {})

    def _refuse(self, action: str, error: Exception, details: dict[str, str]) -> NoReturn:
        field, reason = _explain(error)
        details["type"] = self.name
        if field:
            details["field"] = field
        at = f", field {field!r}" if field else ""
        if action == "write" and "got `null`" in reason:
            reason += " (JSON has no NaN and no infinity: they become null)"
        raise SerdeError(f"cannot {action} as {self.name}{at}: {reason}", details=details) from error


@overload
def serde_for(kind: type[T]) -> Serde[T]: ...
@overload
def serde_for(kind: Any) -> Serde[Any]: ...
def serde_for(kind: Any) -> Serde[Any]:
    """The serde of a type. Raises SerdeError for a type that has none, and says what to do.

    >>> import comet.serde
    >>> @comet.serde.model
    ... class Quote:
    ...     symbol: str
    ...     bid: float
    >>> serde_for(Quote).decode(b'{"symbol": "EURUSD", "bid": 1.1}')
    Quote(symbol='EURUSD', bid=1.1)
    """
    try:
        return _cached(kind)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _make(kind)


def converter_for(kind: Any) -> Callable[[Any], Any]:
    """Makes values of a type from rows of a table, where numbers and times may be text. Both it and the result raise
    SerdeError, the result for a row that does not fit.

    >>> @model
    ... class Bar:
    ...     symbol: str
    ...     close: float
    >>> converter_for(Bar)({"symbol": "EURUSD", "close": "1.08", "note": "x"})
    Bar(symbol='EURUSD', close=1.08)
    """
    serde = serde_for(kind)
    if _is_pydantic(kind):
        import pydantic

        return partial(serde.refusing, "convert a row", pydantic.TypeAdapter(kind).validate_python)
    import msgspec

    return partial(serde.refusing, "convert a row", partial(msgspec.convert, type=kind, strict=False))


@dataclass_transform()
def model(cls: type[T]) -> type[T]:
    """Marks a class as a model: its annotated fields are the fields of a record's value.

    A dataclass, msgspec.Struct, pydantic model or TypedDict stays as it is; any other class becomes a dataclass
    with slots.

    >>> @model
    ... class Trade:
    ...     symbol: str
    ...     price: float
    ...     volume: int = 1
    >>> Trade("EURUSD", 1.1)
    Trade(symbol='EURUSD', price=1.1, volume=1)
    """
    if not isinstance(cls, type):
        raise InvalidArgument(f"@comet.model marks a class, not {cls!r}")
    if "__dataclass_fields__" in vars(cls) or hasattr(cls, "__struct_fields__") or _is_pydantic(cls):
        return cls
    if typing.is_typeddict(cls):
        return cls
    if not any("__annotations__" in vars(base) for base in cls.__mro__):
        raise InvalidArgument(f"{cls.__qualname__} has no annotated fields; write them as `symbol: str`")
    return dataclasses.dataclass(slots=True)(cls)


# ---- making serdes


@lru_cache(maxsize=_CODECS_MAX)
def _cached(kind: Any) -> Serde[Any]:
    return _make(kind)


def _make(kind: Any) -> Serde[Any]:
    if kind is bytes:
        return Serde(kind, bytes, _identity, errors=(TypeError,), accepts=(bytes, bytearray, memoryview))
    if kind is str:
        return Serde(kind, str.encode, _text, errors=(UnicodeError, TypeError), accepts=(str,))
    if _is_pydantic(kind):
        return _make_pydantic(kind)
    return _make_json(kind)


def _identity(data: bytes) -> bytes:
    if data.__class__ is not bytes:
        raise TypeError(f"expected bytes, got {_name(type(data))}")
    return data


def _text(data: bytes) -> str:
    return str(data, "utf-8")


def _make_json(kind: Any) -> Serde[Any]:
    import msgspec

    if kind is object:
        kind = Any
    _check_supported(kind)
    encode = msgspec.json.Encoder().encode
    decode = msgspec.json.Decoder(kind).decode
    errors = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
    refuses = (bool,) if kind is int or kind is float else ()
    has_fields = hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__")
    return Serde(
        kind, encode, decode, errors=errors, accepts=_classes_of(kind), refuses=refuses, has_fields=has_fields
    )  # fmt: skip


def _classes_of(kind: Any) -> tuple[type, ...]:
    """The classes of the type's values, as far as isinstance() can tell."""
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    if kind is float:
        return (float, int)
    if typing.is_typeddict(kind):
        return (dict,)
    origin = typing.get_origin(kind) or kind
    return (origin,) if isinstance(origin, type) and origin is not Any and origin is not UnionType else (object,)


def _check_supported(kind: Any) -> None:
    """Refuses a type that contains an unknown class: msgspec would fail only at the first record."""
    from msgspec import inspect

    try:
        info = inspect.type_info(kind)
    except (TypeError, NameError) as error:
        raise SerdeError(f"{_name(kind)} is not a model: {error}", details={"type": _name(kind)}) from error
    seen: set[int] = set()
    stack: list[Any] = [info]
    while stack:
        node = stack.pop()
        if isinstance(node, inspect.CustomType):
            _refuse_class(kind, node.cls)
        if isinstance(node, tuple | list):
            stack.extend(node)
        elif isinstance(node, inspect.Type | inspect.Field) and id(node) not in seen:
            seen.add(id(node))  # types may contain themselves
            stack.extend(getattr(node, name) for name in node.__struct_fields__)


def _refuse_class(kind: Any, cls: Any) -> NoReturn:
    within = "" if cls is kind else f" inside {_name(kind)}"
    advice = "use pydantic models throughout" if _is_pydantic(cls) else "decorate it with @comet.model"
    raise SerdeError(f"no serde for {_name(cls)}{within}: {advice}", details={"type": _name(cls)})


def _is_pydantic(kind: Any) -> bool:
    """Whether it is a pydantic model or dataclass. Pydantic marks both, so it need not be imported here."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _make_pydantic(kind: Any) -> Serde[Any]:
    import pydantic

    if issubclass(kind, pydantic.BaseModel):
        dump, decode = kind.__pydantic_serializer__.to_json, kind.model_validate_json
    else:
        adapter: Any = pydantic.TypeAdapter(kind)
        dump, decode = adapter.dump_json, adapter.validate_json
    return Serde(kind, dump, decode, errors=(ValueError, TypeError, RecursionError), accepts=(kind,))


# ---- errors


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind) if isinstance(kind, type) else str(kind)


def _explain(error: Exception) -> tuple[str, str]:
    """The field of an error, as a path, and the reason."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return ".".join(map(str, first["loc"])), first["msg"]
    message = str(error) or type(error).__name__
    found = _FIELD_IN_MESSAGE.search(message)
    if found is None:
        return "", message
    return found.group(1) or found.group(2), message
