"""A stranger who tries all that listens at an address, and prints what was answered, as JSON on one line.

    python -m tests.robustness.stranger PLAN     a Plan as JSON

An answer is a status of gRPC other than those of a connection that breaks or stays silent, or a status of HTTP
with the path of a redirect. With a certificate or a token it is a client, to show that the plan can succeed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc

from comet.v1 import admin_pb2, coordination_pb2, records_pb2, replication_pb2

THREADS = 32
TIMEOUT_S = 5.0
CONNECTED = "connected"
UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
SERVICES = [
    service
    for module in (admin_pb2, coordination_pb2, records_pb2, replication_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
CALLS = [
    *(f"/{service.full_name}/{name}" for service in SERVICES for name in service.methods_by_name),
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@dataclass(frozen=True)
class Plan:
    address: str
    ports: Sequence[int]
    requests: Sequence[tuple[str, str]] = ()  # method, or WS, and path
    ca: str = ""
    cert: str = ""
    key: str = ""
    name: str = ""  # that the certificate has instead of the address
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Sequence[tuple[str, str]] = ()  # of calls of gRPC


def answers(plan: Plan) -> dict[str, str]:
    """What was tried and answered."""
    with ThreadPoolExecutor(THREADS) as pool:
        tried = [
            *((f"{port}", pool.submit(_connect, plan, port)) for port in plan.ports),
            *(
                (f"{port} {kind} {call}", pool.submit(_status, plan, channel, call))
                for port in plan.ports
                for kind, channel in _channels(plan, port)
                for call in CALLS
            ),
            *(
                (f"{port} {scheme} {method} {path}", pool.submit(_request, plan, port, scheme, method, path))
                for port in plan.ports
                for scheme in ("http", "https")
                for method, path in plan.requests
            ),
        ]
        return {what: answer for what, future in tried if (answer := future.result())}


def _connect(plan: Plan, port: int) -> str:
    try:
        socket.create_connection((plan.address, port), TIMEOUT_S).close()
    except OSError:
        return ""
    return CONNECTED


def _channels(plan: Plan, port: int) -> Iterator[tuple[str, grpc.Channel]]:
    target = f"{plan.address}:{port}"
    yield "grpc", grpc.insecure_channel(target)
    if plan.ca:
        pem = [Path(path).read_bytes() if path else None for path in (plan.ca, plan.key, plan.cert)]
        options = [("grpc.ssl_target_name_override", plan.name)] if plan.name else []
        yield "grpcs", grpc.secure_channel(target, grpc.ssl_channel_credentials(*pem), options)


def _status(plan: Plan, channel: grpc.Channel, call: str) -> str:
    """Of an empty message, which every method takes, as a stream of one; empty without an answer."""
    requests: Any = iter([b""])
    try:
        for _ in channel.stream_stream(call)(
            requests, timeout=TIMEOUT_S, metadata=tuple((name, value) for name, value in plan.metadata)
        ):
            break
    except grpc.RpcError as error:
        return "" if error.code() in UNANSWERED else error.code().name
    return "OK"


def _request(plan: Plan, port: int, scheme: str, method: str, path: str) -> str:
    if scheme == "http":
        connection = http.client.HTTPConnection(plan.address, port, timeout=TIMEOUT_S)
    else:
        context = ssl.create_default_context(cafile=plan.ca or None)
        context.check_hostname = not plan.name
        connection = http.client.HTTPSConnection(plan.address, port, timeout=TIMEOUT_S, context=context)
    headers: dict[str, Any] = {**plan.headers, **(UPGRADE if method == "WS" else {})}
    with contextlib.closing(connection):
        try:
            connection.request("GET" if method == "WS" else method, path, headers=headers)
            response = connection.getresponse()
            return f"{response.status} {urlsplit(response.headers.get('location', '')).path}".rstrip()
        except (OSError, http.client.HTTPException):
            return ""


def encode(plan: Plan) -> str:
    return json.dumps(asdict(plan))


if __name__ == "__main__":
    print(json.dumps(answers(Plan(**json.loads(sys.argv[1])))))
