"""A broker as a process: real disk, real clock, gRPC, signals.

start    lock the data folder ─► open the metadata store ─► recover the logs ─► listen ─► join the cluster ─► healthy
SIGTERM  leadership is handed over ─► unhealthy ─► GoAway to every client ─► queued frames go out ─► sync, close, unlock
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from random import SystemRandom
from types import TracebackType
from typing import Final, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from comet.errors import Unavailable
from comet.processes.descriptors import raise_descriptor_limit
from comet.processes.logs import set_up_logging
from comet.settings.hosts import HostNames
from comet.v1 import admin_pb2, records_pb2
from comet.wire.acting import acting_for
from comet.wire.tls import TlsFiles
from comet_broker import limits
from comet_broker.access.client_access import EVERYTHING, ClientAccess
from comet_broker.audit.log import LOGGER as AUDIT_LOGGER
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.key_values.table import overflow_to
from comet_broker.metadata.embedded import EmbeddedStore
from comet_broker.metadata.store import MetadataStore
from comet_broker.metrics.http import Monitor
from comet_broker.rpc.audience import Audience, CallContext, brokers_of
from comet_broker.rpc.listeners import (
    Certificates,
    brokers_tls,
    certified_client,
    check_listeners,
    clients_tls,
    serves_brokers,
    unusable,
    warn_of_strangers,
)
from comet_broker.rpc.methods import ADMIN, COMET
from comet_broker.rpc.network import GrpcNetwork
from comet_broker.rpc.other_calls import OtherCalls
from comet_broker.rpc.service import handlers
from comet_broker.rpc.wire_listener import WireListener
from comet_broker.storage.files import RealFiles
from comet_broker.system import SystemClock, SystemProcess, ThreadWorker, boot_id, prefer_the_loop, share_one_heap

log = logging.getLogger(__name__)

VITAL: Final = ("follow the cluster", "follow topics", "keep membership")  # without these tasks it serves an old state

# Measured in docs/performance.md: large HTTP/2 frames and write buffers halve the wake-ups of a small message.
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.so_reuseport", 0),  # a second broker on the port is an error
    ("grpc.keepalive_time_ms", limits.KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", limits.KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Pings are answered. Closing a connection for too many costs gRPC 15 times as much for each ping that it has
    # already received, and delays the other connections.
    ("grpc.http2.max_ping_strikes", 0),
    # gRPC takes metadata up to the first size, refuses it beyond the second, and refuses it at random in between.
    ("grpc.max_metadata_size", limits.METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", limits.METADATA_BYTES_MAX),
    ("grpc.max_connection_idle_ms", limits.CONNECTION_IDLE_MS),
    ("grpc.server_handshake_timeout_ms", limits.CONNECTION_HANDSHAKE_MS),
]


def calls_limits(memory_bytes: int) -> tuple[int, int]:
    """How many calls of all connections may wait for their handlers, and how many one connection may have."""
    share = int(limits.PENDING_CALLS_SHARE * memory_bytes) // limits.PENDING_CALL_BYTES
    pending_max = min(limits.PENDING_CALLS_MAX, share)
    return pending_max, min(limits.CONNECTION_CALLS_MAX, int(limits.CONNECTION_PENDING_SHARE * pending_max))


class Server:
    """One broker, listening. An async context manager: entering returns once it serves, leaving drains it."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.address = ""
        self.serving = False  # or stopping, after it has served
        self._was_in_sync = False  # all its replicas at once, since it has started
        self._listening: list[grpc.aio.Server] = []
        self.wires: list[WireListener] = []
        self._certificates: dict[str, Certificates] = {}  # by listener
        assert COMET in records_pb2.DESCRIPTOR.services_by_name["Comet"].full_name
        assert ADMIN in admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name

    async def __aenter__(self) -> Self:
        config = self.config
        check_listeners(config)
        self._descriptors = raise_descriptor_limit()
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        overflow_to(config.data)
        self._files = RealFiles(config.data)
        self._files.lock()
        clock = SystemClock()
        self._worker = ThreadWorker(limits.BLOCKING_THREADS)
        self._issuer_worker = ThreadWorker(1)  # an issuer of tokens may keep it waiting
        try:
            self._store = await self._open_store(clock)
        except BaseException:
            self._worker.close()
            self._files.unlock()
            raise
        self.broker = Broker(
            config,
            files=self._files,
            store=self._store,
            clock=clock,
            worker=self._worker,
            random=SystemRandom(),
            network=GrpcNetwork(brokers_tls(config)),
            boot_id=boot_id(),
            process=SystemProcess(),
        )
        hosts = HostNames((config.host, config.advertised_host, *config.metrics_hosts))
        self.monitor = Monitor(
            self.broker.statistics,
            self._reasons,
            self._degraded,
            hosts,
            token=config.metrics_token,
            is_open=config.insecure,
        )
        try:
            await self.broker.start()
            await self._listen()
            if config.metrics_port:
                await self.monitor.listen(config.host, config.metrics_port)
            await self.broker.join()
            self.broker.guard.distrusted.append(self._report_health)
            self.broker.guard.trusted.append(self._report_health)
            await self._set_health()
        except BaseException:
            await self._close()
            raise
        self.serving = True
        return self

    def _report_health(self) -> None:
        self.broker.env.tasks.spawn(self._set_health(), "set the health status")

    async def _set_health(self) -> None:
        status = health_pb2.HealthCheckResponse
        serving = status.NOT_SERVING if self.broker.guard.reason else status.SERVING
        for name in ("", COMET, ADMIN):
            await self._health.set(name, serving)

    async def _open_store(self, clock: SystemClock) -> MetadataStore:
        config = self.config
        if not config.etcd:
            return await EmbeddedStore.open(config.data / "metadata.db", clock)
        from comet_broker.metadata.etcd.store import EtcdStore

        return await EtcdStore.open(
            config.etcd,
            prefix=f"/comet/{config.cluster}/",
            clock=clock,
            user=config.etcd_user,
            password=config.etcd_password,
            ca=config.etcd_ca,
            cert=config.etcd_cert,
            key=config.etcd_key,
        )

    async def _listen(self) -> None:
        config = self.config
        self._health = health.aio.HealthServicer()
        clients_audience = Audience(brokers=serves_brokers(config), access=self._access_of)
        brokers_audience = brokers_of(config.cluster, self.broker.refused)
        clients = self._grpc_server(clients_audience)
        checks, reflected = OtherCalls(clients), OtherCalls(clients, admit=self._access_of)
        self.broker.calls += [checks, reflected]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, checks)
        names = (COMET, ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection.aio.ReflectionServicer(names), reflected)
        port = self._open_port("clients", clients, config.host, config.port, clients_tls(config))
        self.broker.registration.port = port
        self.address = f"{config.host}:{port}"
        tls = brokers_tls(config)
        if tls is not None:
            brokers = self._grpc_server(brokers_audience)
            host = config.brokers_host or config.host
            self.broker.registration.brokers_port = self._open_port("brokers", brokers, host, config.brokers_port, tls)
        self._open_wire("clients", clients_audience, config.host, config.wire_port)
        if tls is not None:
            self._open_wire("brokers", brokers_audience, host, config.brokers_wire_port)
        for server in self._listening:
            await server.start()
        for wire in self.wires:
            wire.start()
        self._follow_credentials()
        if config.insecure:
            self.broker.env.tasks.spawn(warn_of_strangers(config), "warn of strangers")

    def _follow_credentials(self) -> None:
        broker, spawn = self.broker, self.broker.env.tasks.spawn
        if not broker.credentials.required:
            return
        spawn(broker.credentials.follow(), "follow the credentials")
        if broker.access_keys.taken:
            spawn(broker.access_keys.follow(self._worker), "follow the access keys")
        if broker.tokens is not None:
            spawn(broker.tokens.follow(self._issuer_worker), "follow the issuer's keys")

    def _access_of(self, context: CallContext) -> ClientAccess:
        caller = self._caller_of(context)
        user = acting_for(context.invocation_metadata())
        return caller if user is None else self.broker.access.for_user(caller, user)

    def _caller_of(self, context: CallContext) -> ClientAccess:
        if self.broker.credentials.required:
            peer = context.peer()
            return self.broker.access.of_holder(
                self.broker.credentials.holder(context.invocation_metadata(), peer), peer
            )
        if not self.broker.access.checked:
            return EVERYTHING
        return self.broker.access.of(certified_client(self.config.cluster, context.auth_context()), context.peer())

    def _grpc_server(self, audience: Audience) -> grpc.aio.Server:
        connections_max = int(limits.CONNECTIONS_SHARE * self._descriptors)
        pending_max, calls_max = calls_limits(self.broker.memory_bytes)
        options: list[tuple[str, int]] = [
            *CHANNEL_OPTIONS,
            ("grpc.server.max_pending_requests", pending_max),
            ("grpc.server.max_pending_requests_hard_limit", pending_max),
            ("grpc.max_concurrent_streams", calls_max),
            ("grpc.max_allowed_incoming_connections", connections_max),
            ("grpc.max_receive_message_length", self.broker.message_bytes_max),
        ]
        if self.broker.memory_bytes < limits.MEMORY_BYTES:
            options += [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", limits.WINDOW_BYTES)]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(tuple(handlers(self.broker, audience)))
        return server

    def _open_port(self, listener: str, server: grpc.aio.Server, host: str, port: int, tls: TlsFiles | None) -> int:
        """The port that the server will listen on. Raises Unavailable."""
        wanted = f"{host}:{port}"
        hint = {"hint": f"choose another {'--brokers-port' if listener == 'brokers' else '--port'}"}
        if reason := unusable(host, port):  # gRPC does not say why, and logs lines of its own
            raise Unavailable(f"cannot listen on {wanted}: {reason}", details=hint)
        try:
            if tls is None:
                opened = server.add_insecure_port(wanted)
            else:
                certificates = Certificates(listener, tls, self._worker, self.broker.env.clock)
                self._certificates[listener] = certificates
                opened = server.add_secure_port(wanted, certificates.credentials())
                self.broker.certificates.append(certificates)
                self.broker.env.tasks.spawn(certificates.follow(), f"follow {tls.cert}")
        except RuntimeError:
            opened = 0
        if opened == 0:
            raise Unavailable(f"cannot listen on {wanted}: the port may be in use", details=hint)
        self._listening.append(server)
        return opened

    def _open_wire(self, listener: str, audience: Audience, host: str, port: int) -> None:
        """Opens the wire beside a listener of gRPC. Raises Unavailable."""
        if not self.config.wire:
            return
        broker, registration = self.broker, self.broker.registration
        wire = WireListener(
            broker,
            audience,
            connections_max=int(limits.WIRE_CONNECTIONS_SHARE * self._descriptors),
            memory_bytes=broker.memory_bytes,
        )
        opened = wire.listen(host, port, self._certificates.get(listener))
        if listener == "clients":
            registration.wire_port = opened
            if self.config.wire_socket:
                registration.wire_socket = wire.listen_here(self.config.data)
        else:
            registration.brokers_wire_port = opened
        broker.calls.append(wire)
        self.wires.append(wire)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drains: notifies clients first, and syncs acknowledged records last."""
        await self.broker.drain()
        await self._health.enter_graceful_shutdown()
        await self._stop_listening(self.config.drain_grace_ms / 1000)
        await self._close()

    async def _stop_listening(self, grace_s: float | None) -> None:
        listening, self._listening = self._listening, []
        wires, self.wires = self.wires, []
        await asyncio.gather(*(server.stop(grace_s) for server in listening), *(wire.close(grace_s) for wire in wires))

    def _reasons(self) -> list[str]:
        """Why clients should use other brokers; empty if all is well."""
        found = [] if self.serving else ["it has not joined the cluster yet"]
        if self.broker.guard.reason:
            found.append(self.broker.guard.reason)
        if self.broker.draining:
            found.append("it is about to stop")
        elif self.serving and not self.broker.guard.reason and not self.broker.membership.alive():
            found.append("its registration in the metadata store has expired")
        elif self.serving and (behind := self._replicas_behind()):
            found.append(f"replicas on it that have not been in sync since its start: {behind}")
        failing = self.broker.env.tasks.failing
        return found + [f"its task {name!r} keeps failing: {failing[name]}" for name in VITAL if name in failing]

    def _replicas_behind(self) -> int:
        """The number of replicas that are not in sync; 0 once all have been. A later lag does not count: it would take
        brokers away from clients when they are needed most."""
        behind = 0 if self._was_in_sync else self.broker.view.state.replicas_not_in_sync(self.broker.broker_id)
        self._was_in_sync = not behind
        return behind

    def _degraded(self) -> list[str]:
        """The entities that have failed, while everything else is served."""
        found = [one for one in self.broker.env.failures.all() if one.until is None]
        return [f"{one.kind} {one.name} has failed: {one.reason}" for one in found[: limits.FAILURES_SHOWN_MAX]]

    async def _close(self) -> None:
        await self.monitor.close()
        await self._stop_listening(None)  # those of a broker that listened, and could not join
        await self.broker.close()
        await self._store.close()
        self._worker.close()
        self._issuer_worker.close()
        self._files.unlock()


Beside = Callable[[Server], AbstractAsyncContextManager[None]]


def set_up_broker_logging(level: str, log_format: str, broker: int) -> None:
    """Logs to stderr. The audit log is written at every level."""
    set_up_logging(level, log_format, broker=broker)
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)


def serve(
    config: BrokerConfig, on_ready: Callable[[Server], None] | None = None, *, beside: Beside | None = None
) -> None:
    """Runs a broker until SIGTERM or SIGINT. `on_ready` is called once it takes requests; `beside` is entered before
    that and left before the broker drains."""
    import uvloop

    share_one_heap()
    prefer_the_loop()
    uvloop.run(_serve(Server(config), on_ready, beside))


async def _serve(starts: Server, on_ready: Callable[[Server], None] | None, beside: Beside | None = None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()
    assert starting is not None

    def stop_now() -> None:
        if not starts.serving and not stop.is_set():
            starting.cancel()  # it may be waiting for a metadata store without a time limit
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_now)
    try:
        await _serve_until(stop, starts, on_ready, beside)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        starting.uncancel()
        log.info("stopped before it took requests")


async def _serve_until(
    stop: asyncio.Event, starts: Server, on_ready: Callable[[Server], None] | None, beside: Beside | None
) -> None:
    config = starts.config
    async with starts as server:
        # Objects from the start live until the end: walking them in every full collection would stop everything for 10
        # ms.
        gc.collect()
        gc.freeze()
        log.info("broker %d serves %s from %s", config.broker_id, server.address, config.data)
        async with nullcontext() if beside is None else beside(server):
            if on_ready is not None:
                on_ready(server)
            await stop.wait()
        log.info("broker %d drains", config.broker_id)
