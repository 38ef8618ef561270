"""A stranger who tries all that listens at an address, and prints what was answered, as JSON on one line.

    python -m tests.robustness.stranger PLAN     a Plan as JSON

    gRPC    the status, and the code of the error that the broker sent with it; empty without an answer
    frame   the same of a Stream with this one frame; the code of an error frame
    wire    the code of the error that ends the connection, or answers the frame
    HTTP    the status, and the code of its problem document, or the path of its redirect

An answer that holds the plan's secret, the name of a topic, ends in SECRET. A port that does not begin to speak HTTP/2
within the time of one call gets no calls. With a certificate or a token the stranger is a client, to show that the plan
can succeed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from comet.v1 import admin_pb2, coordination_pb2, records_pb2, replication_pb2, wire_pb2
from comet.wire import framing
from comet.wire.framing import Kind
from comet.wire.protobuf import error_from_pb

THREADS = 32
TIMEOUT_S = 5.0
BODY_BYTES_MAX = 1 << 20
CONNECTED = "connected"
SECRET = "SECRET"
UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
SERVICES = [
    service
    for module in (admin_pb2, coordination_pb2, records_pb2, replication_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
HEALTH = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CALLS = [
    *(f"/{service.full_name}/{name}" for service in SERVICES for name in service.methods_by_name),
    *HEALTH,
    REFLECTION,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
]
STREAM = "/comet.v1.Comet/Stream"
WIRE_CALLS = [STREAM, "/comet.v1.Replication/Replicate"]
FRAMES = sorted(one.name for one in records_pb2.ClientFrame.DESCRIPTOR.oneofs_by_name["frame"].fields)
LIST_SERVICES = b"\x3a\x00"  # ServerReflectionRequest(list_services="")
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
    secret: str = ""


def answers(plan: Plan) -> dict[str, str]:
    """What was tried and answered."""
    calls = [*((call, b"") for call in CALLS), (f"{REFLECTION} list", LIST_SERVICES)]
    with ThreadPoolExecutor(THREADS) as pool:
        tried = [(f"{port}", pool.submit(_connect, plan, port)) for port in plan.ports]
        greeted = [(one, pool.submit(_wire, plan, one[0], one[2], STREAM)) for one in _wires(plan)]
        for port, kind, channel in _channels(plan):
            tried += [(f"{port} {kind} {call}", pool.submit(_status, plan, channel, call, one)) for call, one in calls]
            tried += [(f"{port} {kind} frame {one}", pool.submit(_frame, plan, channel, one)) for one in FRAMES]
        for (port, kind, context), greeting in greeted:
            if not greeting.result():
                continue
            for call in WIRE_CALLS:
                tried.append((f"{port} {kind} {call}", pool.submit(_wire, plan, port, context, call)))
            for frame in FRAMES:
                tried.append((f"{port} {kind} frame {frame}", pool.submit(_wire, plan, port, context, STREAM, frame)))
        tried += [
            (f"{port} {scheme} {method} {path}", pool.submit(_request, plan, port, scheme, method, path))
            for port in plan.ports
            for scheme in ("http", "https")
            for method, path in plan.requests
        ]
        return {what: answer for what, future in tried if (answer := future.result())}


def _connect(plan: Plan, port: int) -> str:
    try:
        socket.create_connection((plan.address, port), TIMEOUT_S).close()
    except OSError:
        return ""
    return CONNECTED


def _channels(plan: Plan) -> Iterator[tuple[int, str, grpc.Channel]]:
    """Those that connect, in the clear and with TLS."""
    found = []
    for port in plan.ports:
        target = f"{plan.address}:{port}"
        found.append((port, "grpc", grpc.insecure_channel(target)))
        if plan.ca:
            pem = [Path(path).read_bytes() if path else None for path in (plan.ca, plan.key, plan.cert)]
            options = [("grpc.ssl_target_name_override", plan.name)] if plan.name else []
            found.append((port, "grpcs", grpc.secure_channel(target, grpc.ssl_channel_credentials(*pem), options)))
    connecting = [(one, grpc.channel_ready_future(one[2])) for one in found]
    deadline = time.monotonic() + TIMEOUT_S
    for one, connected in connecting:
        with contextlib.suppress(grpc.FutureTimeoutError):
            connected.result(max(0.0, deadline - time.monotonic()))
            yield one


def _status(plan: Plan, channel: grpc.Channel, call: str, request: bytes) -> str:
    """Of one message, an empty one for most, which every method takes."""
    try:
        for answer in _call(plan, channel, call.partition(" ")[0], request):
            return _shown(plan, "OK", answer)
    except grpc.RpcError as error:
        return _error(error)
    return "OK"


def _frame(plan: Plan, channel: grpc.Channel, kind: str) -> str:
    frame = records_pb2.ClientFrame(request=7)
    getattr(frame, kind).SetInParent()
    try:
        for answer in _call(plan, channel, STREAM, frame.SerializeToString()):
            found = records_pb2.ServerFrame.FromString(answer)
            if found.WhichOneof("frame") == "error":
                return error_from_pb(found.error.error).code
            return _shown(plan, "OK", answer)
    except grpc.RpcError as error:
        return _error(error)
    return "OK"


def _call(plan: Plan, channel: grpc.Channel, call: str, request: bytes) -> Any:
    metadata = tuple((name, value) for name, value in plan.metadata)
    requests: Any = iter([request])
    return channel.stream_stream(call)(requests, timeout=TIMEOUT_S, metadata=metadata)


def _wires(plan: Plan) -> list[tuple[int, str, ssl.SSLContext | None]]:
    """All ports, in the clear and with TLS."""
    found: list[tuple[int, str, ssl.SSLContext | None]] = [(port, "wire", None) for port in plan.ports]
    if plan.ca:
        context = ssl.create_default_context(cafile=plan.ca)
        context.check_hostname = not plan.name
        if plan.cert:
            context.load_cert_chain(plan.cert, plan.key)
        found += [(port, "wires", context) for port in plan.ports]
    return found


def _wire(plan: Plan, port: int, context: ssl.SSLContext | None, call: str, kind: str = "") -> str:
    """The code of the error that ends the connection, or answers the one frame. A port of another protocol answers
    nothing."""
    authorization = dict(plan.metadata).get("authorization", "")
    hello = wire_pb2.WireHello(version=framing.VERSION, call=call.removeprefix("/"), authorization=authorization)
    welcomed = ""
    sent = framing.control(Kind.HELLO, hello.SerializeToString())
    if kind:
        frame = records_pb2.ClientFrame(request=7)
        getattr(frame, kind).SetInParent()
        content = frame.SerializeToString()
        sent += framing.head(len(content)) + content
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((plan.address, port), TIMEOUT_S))
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname=plan.address))
            connection.sendall(sent)
            file = stack.enter_context(connection.makefile("rb"))
            while True:
                size, found = framing.HEAD.unpack(file.read(framing.HEAD_BYTES))
                if found not in (framing.DATA, Kind.WELCOME, Kind.END) or size > BODY_BYTES_MAX:
                    return ""
                content = file.read(size)
                if found == Kind.END:
                    error = framing.parse_end(content)
                    return "OK" if error is None else error.code
                if found == framing.DATA:
                    answer = records_pb2.ServerFrame.FromString(content)
                    if answer.WhichOneof("frame") == "error":
                        return error_from_pb(answer.error.error).code
                    return _shown(plan, "OK", content)
                welcomed = "OK"
                if not kind:
                    return welcomed
    except TimeoutError:
        return welcomed  # a frame without an answer
    except (OSError, struct.error, DecodeError):
        return ""


def _error(error: Any) -> str:
    if error.code() in UNANSWERED:
        return ""
    words = [error.code().name]
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            info = error_details_pb2.ErrorInfo()
            words += [info.reason for one in status_pb2.Status.FromString(value).details if one.Unpack(info)]
    return " ".join(words)


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
            stream = response.headers.get("content-type", "").startswith("text/event-stream")
            body = (
                b""
                if stream or response.status == http.HTTPStatus.SWITCHING_PROTOCOLS
                else response.read(BODY_BYTES_MAX)
            )
        except (OSError, http.client.HTTPException):
            return ""
    words = [str(response.status), urlsplit(response.headers.get("location", "")).path]
    if response.headers.get("content-type", "").startswith("application/problem+json") and body:
        words.append(json.loads(body)["code"])
    return _shown(plan, " ".join(filter(None, words)), body)


def _shown(plan: Plan, answer: str, body: bytes) -> str:
    return f"{answer} {SECRET}" if plan.secret and plan.secret.encode() in body else answer


def encode(plan: Plan) -> str:
    return json.dumps(asdict(plan))


if __name__ == "__main__":
    print(json.dumps(answers(Plan(**json.loads(sys.argv[1])))))
