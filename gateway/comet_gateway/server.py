"""The gateway as a process: uvicorn on uvloop, signals, and a graceful shutdown.

SIGTERM   /readyz answers 503 ─► answers close their connection ─► streams tell their clients to reconnect
          ─► when no client is left, or after drain_s: cut the remaining connections, close the brokers' clients, exit 0
SIGHUP    read the tokens file again

With `http.uvicorn_http` and `http.uvicorn_websocket` the only module that depends on uvicorn; the application runs on
any ASGI server.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import uvicorn
from uvicorn.config import create_ssl_context

import comet
from comet.errors import InvalidArgument, Unavailable
from comet.processes.descriptors import raise_descriptor_limit
from comet.processes.logs import set_up_logging
from comet_gateway.app import create_app
from comet_gateway.config import GatewayConfig
from comet_gateway.http.certificate import Certificate
from comet_gateway.http.uvicorn_http import Protocol
from comet_gateway.http.uvicorn_websocket import SocketProtocol

log = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 75  # longer than load balancers' own, so that they close first
BACKLOG: Final = 2048
CONNECTIONS_SHARE: Final = 0.8  # of the file descriptors; the rest is for brokers, files and logs
POLL_S: Final = 0.05
IDLE_S: Final = 0.2  # idle time after which a connection is closed during a drain
CUT_S: Final = 1  # for cut connections to end
_LOGGED_BEFORE: Final = ("Exception in ASGI application", "ASGI callable returned without completing")


class Server(uvicorn.Server):
    """The server of one gateway. `on_ready` gets its URL once it takes requests."""

    def __init__(self, config: GatewayConfig, on_ready: Callable[[str], None] | None = None) -> None:
        self.app = create_app(config)
        self.gateway = config
        self.url = ""
        self._on_ready = on_ready
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        limits = config.limits

        class Http(Protocol):
            unread_s = limits.unread_s
            open_max = int(CONNECTIONS_SHARE * raise_descriptor_limit())

        class WebSocket(SocketProtocol):
            unread_s = limits.unread_s

        super().__init__(
            uvicorn.Config(
                self.app,
                http=Http,
                ws=WebSocket,
                ws_max_size=limits.frame_bytes_max,
                ws_ping_interval=limits.idle_s / 3,
                ws_ping_timeout=limits.idle_s * 4 / 3,  # a client that pings every `idle_s` gets some more time
                ws_per_message_deflate=False,  # it would compress the same bytes for each client
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(config.proxies),
                forwarded_allow_ips=list(config.proxies),
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CUT_S,
                backlog=BACKLOG,
                ssl_certfile=config.tls_cert or None,
                ssl_keyfile=config.tls_key or None,
            )
        )
        self._certificate: Certificate | None = None
        try:
            self.config.load()
            if self.config.ssl is not None:
                self._certificate = Certificate(config.tls_cert, config.tls_key, self._tls_context)
                self._certificate.serve(self.config.ssl)
        except OSError as error:  # includes SSLError
            raise InvalidArgument(
                f"cannot use the certificate {config.tls_cert} with {config.tls_key}: {error}"
            ) from None

    def _tls_context(self) -> ssl.SSLContext:
        """A context as uvicorn makes it, with what the files hold now."""
        return create_ssl_context(
            certfile=self.gateway.tls_cert,
            keyfile=self.gateway.tls_key,
            password=None,
            ssl_version=self.config.ssl_version,
            cert_reqs=self.config.ssl_cert_reqs,
            ca_certs=None,
            ciphers=self.config.ssl_ciphers,
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # the loop handles them
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: self.reload}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stops: the first call gracefully, the second one at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def reload(self) -> None:
        """Reads the tokens file again; if it is wrong, the tokens stay."""
        try:
            self.app.state.gatekeeper.reload()
        except InvalidArgument as error:
            log.error("tokens file not reloaded, the tokens stay: %s", error)
        else:
            log.warning("tokens file reloaded")

    async def run_until_stopped(self) -> None:
        listening = _listen(self.gateway)
        with listening:
            await self.serve(sockets=[listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        self.url = _url(self.gateway, sockets[0])
        # Objects of the start live for good. A collection over these 80,000 blocked the loop for 0.1 s and more.
        gc.collect()
        gc.freeze()
        log.info("gateway listening: %s", self.url)
        if self._on_ready is not None:
            self._on_ready(self.url)

    async def main_loop(self) -> None:
        beside = [asyncio.create_task(self._check_ready())]
        if self._certificate is not None:
            beside.append(asyncio.create_task(self._certificate.follow()))
        while not self._stop.is_set():
            await self.on_tick(0)  # sets the Date header of answers
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stop.wait()
        for task in beside:
            task.cancel()
        await self._drain()

    async def _check_ready(self) -> None:
        """Logs if no broker can be reached after the start."""
        await self.app.state.readiness.reasons()

    async def _drain(self) -> None:
        """Waits until no client is left, or the time is over."""
        log.info("gateway draining")
        self.app.state.draining.set()
        loop, state = asyncio.get_running_loop(), self.server_state
        now = loop.time()
        deadline, notice = now + self.gateway.drain_s, now + self.gateway.drain_notice_s
        idle: dict[Protocol, tuple[object, float]] = {}
        while not self._hurry.is_set() and now < deadline and (now < notice or state.connections or state.tasks):
            for connection in list(state.connections):
                if isinstance(connection, Protocol):
                    self._let_go(connection, idle, now, notice)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._hurry.wait()
            now = loop.time()

    def _let_go(
        self, connection: Protocol, idle: dict[Protocol, tuple[object, float]], now: float, notice: float
    ) -> None:
        """Closes a connection after its answer. An idle one gets a moment, as a request may be on its way."""
        if not connection.idle:
            connection.shutdown()
            return
        last, since = idle.setdefault(connection, (connection.cycle, now))
        if last is not connection.cycle:
            idle[connection] = (connection.cycle, now)
        elif now - since >= IDLE_S and now >= notice:
            connection.shutdown()


def _listen(config: GatewayConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            details={"hint": "if another process uses the port, choose another --port"},
        ) from None


def _url(config: GatewayConfig, listening: socket.socket) -> str:
    """The URL for a client on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104 - compared, not bound
    scheme = "https" if config.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def set_up_gateway_logging(level: str, log_format: str) -> None:
    """Logs to stderr. The audit log is written at every level."""
    set_up_logging(level, log_format)
    logging.getLogger("comet_gateway.audit").setLevel(logging.INFO)
    uvicorn_log = logging.getLogger("uvicorn.error")
    # With debug it logs the headers and frames of WebSockets: tokens, cookies, records.
    uvicorn_log.setLevel(max(logging.INFO, logging.getLogger().level))
    # Errors are logged once, by `Front`, with the request's id; uvicorn would repeat them without it. It also reports a
    # refused handshake as one that was never answered.
    uvicorn_log.addFilter(lambda record: not record.getMessage().startswith(_LOGGED_BEFORE))


def serve(config: GatewayConfig, on_ready: Callable[[str], None] | None = None) -> None:
    """Runs a gateway until SIGTERM or SIGINT. `on_ready` gets its URL once it takes requests."""
    if bool(config.tls_cert) != bool(config.tls_key):
        raise InvalidArgument("tls_cert and tls_key belong together: give both or neither")

    async def main() -> None:
        await Server(config, on_ready).run_until_stopped()

    comet.run(main())
