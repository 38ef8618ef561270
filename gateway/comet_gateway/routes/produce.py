"""Route to write records: one or many as a JSON document, or any number as NDJSON, answered while they arrive."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from fastapi import APIRouter, Request

import comet
from comet.types import Receipt
from comet_gateway.config import GatewayConfig
from comet_gateway.http import request_body
from comet_gateway.http.incoming_body import IncomingBody
from comet_gateway.http.problems import Problem, answers
from comet_gateway.http.query_params import QueryParams
from comet_gateway.http.raw_route import Answer, RawRoute, Reply
from comet_gateway.http.server_spans import creation_context
from comet_gateway.records.ndjson import LinesAnswer
from comet_gateway.records.write import WriteResult, write, write_once
from comet_gateway.schemas.records import Columns, decode_body
from comet_gateway.schemas.records_api import PRODUCE

router = APIRouter(prefix="/v1", route_class=RawRoute)

TIMEOUT_MS: Final = 30_000
_KNOWN: Final = frozenset({"acks", "timeout_ms"})
_ACKS: Final = {"0": comet.Acks.NONE, "1": comet.Acks.LEADER, "all": comet.Acks.ALL}


class ProduceQuery(msgspec.Struct, frozen=True):
    """Parsed query parameters."""

    acks: comet.Acks = comet.Acks.LEADER
    timeout_ms: int = TIMEOUT_MS


_PLAIN: Final = ProduceQuery()


@router.post(
    "/topics/{topic}/records",
    operation_id="writeRecords",
    summary="Write records",
    tags=["records"],
    openapi_extra=PRODUCE,
    responses=answers(
        "TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "MALFORMED_BODY", "BODY_STALLED", "BODY_TOO_LARGE",
        "RECORD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE", "KEY_REUSED", "VALIDATION", "NOT_LEADER", "LEADERSHIP_LOST",
        "NOT_ENOUGH_REPLICAS", "DISK_FULL", "LOG_FAILED",
    ),
)  # fmt: skip
async def produce(request: Request) -> Answer:
    """Writes one record, many in a document, or any number as NDJSON.

    The answer has the partition and offset of each record, in order. NDJSON is answered line by line, while more is
    sent; a client that sends many lines must read meanwhile.
    """
    scope = request.scope
    state = scope["app"].state
    config: GatewayConfig = state.config
    backend = state.backend
    headers: request_body.Headers = scope["comet.headers"]
    incoming: IncomingBody = scope["comet.body"]
    topic: str = scope["path_params"]["topic"]
    options = _options(scope["query_string"], config.limits.timeout_ms_max) if scope["query_string"] else _PLAIN
    kind = request_body.media_type(headers, request_body.JSON, request_body.NDJSON)
    principal = scope["comet.principal"]
    producer = state.users.producer_for(principal, backend.producers[options.acks])
    context = creation_context(scope)
    key = headers.get(b"idempotency-key")
    if kind == request_body.NDJSON:
        if key is not None:
            raise Problem("INVALID_ARGUMENT", "NDJSON is written as it arrives, so it cannot have an idempotency key")
        lines = request_body.read_lines(incoming, headers, config.limits)
        needs = (("write", "topic", topic),)

        async def prepare(columns: Columns) -> None:
            await state.users.check(principal, needs)
            if context:
                columns.add_context(context)

        answer = LinesAnswer(
            lines,
            prepare,
            producer,
            backend.catalog,
            topic,
            config.limits,
            options.timeout_ms / 1000,
            state.metrics,
            state.draining,
        )
        return await answer.begun()
    body = await request_body.read(incoming, headers, config.limits)
    columns = decode_body(body, config.limits.records_max)
    state.metrics.bytes_in += len(body)
    state.metrics.records_in += len(columns)
    if key is not None:  # a repeated request has another context, and would not be the same
        receipts = await write_once(producer, topic, columns, key.decode("latin-1"), options.acks, options.timeout_ms)
        return Reply(b'{"results":[%b]}' % ",".join(map(_receipt, receipts)).encode())
    if context:
        columns.add_context(context)
    deadline = asyncio.get_running_loop().time() + options.timeout_ms / 1000
    written = await write(producer, backend.catalog, topic, columns, deadline)
    await written.wait(deadline)
    return _answer(written, options.acks)


def _options(query_string: bytes, timeout_ms_max: int) -> ProduceQuery:
    query = QueryParams(query_string, _KNOWN)
    acks = _ACKS.get(query.text("acks", "1"))
    if acks is None:
        raise Problem("VALIDATION", f"acks must be 0, 1 or all, not {query.text('acks')[:40]!r}")
    return ProduceQuery(acks, query.number("timeout_ms", TIMEOUT_MS, 1, timeout_ms_max))


def _answer(written: WriteResult, acks: comet.Acks) -> Answer:
    written.refuse()
    status = 207 if written.failed else 202 if acks is comet.Acks.NONE else 200
    return Reply(f'{{"results":[{",".join(written.texts)}]}}'.encode(), status=status)


def _receipt(receipt: Receipt) -> str:
    duplicate = ',"duplicate":true' if receipt.duplicate else ""
    return f'{{"partition":{receipt.partition},"offset":"{receipt.offset}"{duplicate}}}'
