"""The AsyncAPI 3 document of an app: its topics as channels, its handlers as operations, its models as schemas.

handler of "quotes"         operation "receive" on channel "quotes", with the schema of its model
its retry topic             operations "send" and "receive" on that channel
its dead-letter topic       operation "send" on that channel
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from comet.errors import InvalidArgument
from comet.handlers.binding import Binding
from comet.handlers.handler import HandlerShape

VERSION: Final = "3.0.0"
_REF: Final = "#/components/schemas/{name}"
_PYDANTIC_REF: Final = "#/components/schemas/{model}"
_ID: Final = re.compile(r"[^A-Za-z0-9._-]")  # of names in components


def document(
    bindings: Sequence[Binding], addresses: Iterable[str], *, title: str, version: str, description: str
) -> dict[str, Any]:
    """The document. Raises InvalidArgument for a type that has no JSON schema."""
    builder = _Document()
    for binding in bindings:
        builder.add(binding)
    info = {"title": title, "version": version}
    if description:
        info["description"] = description
    return {
        "asyncapi": VERSION,
        "info": info,
        "defaultContentType": "application/json",
        "servers": {f"broker-{n}": {"host": one, "protocol": "comet"} for n, one in enumerate(addresses, 1)},
        "channels": builder.channels,
        "operations": builder.operations,
        "components": {"messages": builder.messages, "schemas": builder.schemas},
    }


class _Document:
    """The parts that handlers add."""

    def __init__(self) -> None:
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}

    def add(self, binding: Binding) -> None:
        operation: dict[str, Any] = {
            "action": "receive",
            "summary": (binding.handler.__doc__ or "").strip().partition("\n")[0] or f"Handled by {binding.name}.",
            **self._at(binding.topic, self._message(binding.signature.type)),
        }
        if binding.group:
            shared = {"x-comet-shared": True} if binding.options.shared else {}
            operation |= {"x-comet-group": binding.group, "x-comet-delivery": binding.options.delivery, **shared}
        if binding.signature.shape in {HandlerShape.MODELS, HandlerShape.BATCH}:
            operation["x-comet-batch"] = True
        self._operation(f"{binding.name.rpartition('.')[2]}-{binding.topic}", operation)
        if binding.reads_retries:
            self._send(binding, binding.topic, f"Records that {binding.name} is called with again, later.")
        elif binding.options.dead_letter:
            text = f"Records that {binding.name} gave up, unchanged, with the reason in headers."
            self._send(binding, binding.options.dead_letter, text)

    def _send(self, binding: Binding, topic: str, summary: str) -> None:
        operation = {"action": "send", "summary": summary, **self._at(topic, self._message(binding.signature.type))}
        self._operation(f"{binding.name.rpartition('.')[2]}-{topic}", operation)

    def _operation(self, name: str, operation: dict[str, Any]) -> None:
        base = name = _ID.sub("-", name)
        number = 2
        while name in self.operations:
            name, number = f"{base}-{number}", number + 1
        self.operations[name] = operation

    def _at(self, topic: str, message: str) -> dict[str, Any]:
        """The references of an operation to its channel and message."""
        messages = self.channels.setdefault(topic, {"address": topic, "messages": {}})["messages"]
        messages[message] = {"$ref": f"#/components/messages/{message}"}
        channel = f"#/channels/{topic}"
        return {"channel": {"$ref": channel}, "messages": [{"$ref": f"{channel}/messages/{message}"}]}

    def _message(self, kind: Any) -> str:
        """The name of the message of a type."""
        if kind is None:
            return self._named("bytes", {"contentType": "application/octet-stream", "payload": {"type": "string"}})
        if kind is str:
            return self._named("text", {"contentType": "text/plain", "payload": {"type": "string"}})
        schema = self._schema(kind)
        name = schema["$ref"].rpartition("/")[2] if "$ref" in schema else getattr(kind, "__name__", str(kind))
        return self._named(_ID.sub("-", name), {"contentType": "application/json", "payload": schema})

    def _named(self, name: str, message: dict[str, Any]) -> str:
        message = {"name": name, **message, "headers": {"type": "object"}}
        self.messages.setdefault(name, message)
        return name

    def _schema(self, kind: Any) -> dict[str, Any]:
        if hasattr(kind, "__pydantic_core_schema__"):
            import pydantic

            schema: dict[str, Any] = pydantic.TypeAdapter(kind).json_schema(ref_template=_PYDANTIC_REF)
            self.schemas |= schema.pop("$defs", {})
            self.schemas[kind.__name__] = schema
            return {"$ref": _REF.format(name=kind.__name__)}
        try:
            (found,), components = msgspec.json.schema_components([kind], ref_template=_REF)
        except TypeError as error:
            raise InvalidArgument(f"{kind!r} has no JSON schema: {error}") from None
        self.schemas |= components
        return found
