"""The admin acts of clients, in the audit log: each that changes something, with its outcome."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from comet.admin.acts import ACTS
from comet.errors import CometError
from comet.v1 import schedules_pb2 as schedules
from comet_broker import limits
from comet_broker.access.client_access import Need, caller
from comet_broker.audit.log import AuditLog
from comet_broker.core.rules import ALL
from comet_broker.rpc.methods import ADMIN, Method

_CLUSTER: Final[Need] = ("alter", "cluster", ALL)


def recorded(audit: AuditLog, methods: Sequence[Method]) -> list[Method]:
    """The methods; those that change something also record it. A call that is denied does not reach them."""
    return [_recorded(audit, method) if _changes(method) else method for method in methods]


def _changes(method: Method) -> bool:
    return method.service == ADMIN and ACTS[method.name].role != "viewer"


def _recorded(audit: AuditLog, method: Method) -> Method:
    async def answer(request: Message) -> Message:
        access = caller()
        if access.watch is None or _is_delayed_send(request):  # else another broker forwards what it has recorded
            return await method.answer(request)
        code, message = "CANCELLED", "the client has given up; the act may have been done"
        try:
            found = await method.answer(request)
        except CometError as error:
            code, message = error.code, error.message
            raise
        except Exception as error:
            code, message = "INTERNAL", repr(error)
            raise
        else:
            code, message = "", ""
            return found
        finally:
            need = next(iter(method.needs(request)), _CLUSTER)
            audit.acted(access, method.name, need, shown(request), code, message)

    return replace(method, answer=answer)


def _is_delayed_send(request: Message) -> bool:
    """Whether a program sends records with a delay: no act of administration, and there may be many."""
    return isinstance(request, schedules.PutSchedulesRequest) and all(put.fresh for put in request.schedules)


def shown(request: Message) -> dict[str, Any]:
    """A request as JSON, without its fields of bytes: digests, and ids of topics. A large one is only its size."""
    size = request.ByteSize()
    if size <= limits.AUDIT_REQUEST_BYTES_MAX:
        copy = type(request)()
        copy.CopyFrom(request)
        _clear_bytes(copy)
        found = MessageToDict(copy, preserving_proto_field_name=True)
        if len(json.dumps(found)) <= limits.AUDIT_REQUEST_BYTES_MAX:
            return found
    return {"bytes": size, **({"dry_run": True} if getattr(request, "dry_run", False) else {})}


def _clear_bytes(message: Message) -> None:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_BYTES:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if field.is_repeated else [value]:
                if isinstance(one, Message):  # else the key of a map
                    _clear_bytes(one)
