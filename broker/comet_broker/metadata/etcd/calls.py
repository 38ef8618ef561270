"""Calls to etcd's members: one channel each, one member in use, the next one when it fails.

Every call has a deadline, so that a paused member is detected as soon as one that is gone. A repeatable call is tried
on the other members within the same deadline. A transaction is sent once, over an established connection; without an
answer its outcome is unknown, and the port raises StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from aetcd import rpc

from comet.errors import Closed, LimitExceeded
from comet_broker.metadata.store import LeaseLost, StoreUnavailable
from comet_broker.ports import Clock

log = logging.getLogger(__name__)
T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]  # gRPC's, sent with a call

CONNECT_MS_MIN: Final = 1_000  # for connecting, which goes on beyond calls with less time
BACKOFF_MAX_MS: Final = 500
OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),  # the port limits requests, and thereby listings
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", BACKOFF_MAX_MS),
    ("grpc.enable_retries", 0),  # this module decides on retries
)
# A member that has lost the others would go on answering streams from its last state; with this it fails them.
REQUIRE_LEADER: Final = ("hasleader", "true")
# The first releases of each line without known losses of watch events and ways around its passwords.
SOUND_VERSIONS: Final = {(3, 5): 30, (3, 6): 11}


class StaleToken(Exception):
    """etcd no longer accepts the token of an earlier authentication."""


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials for etcd. Without a certificate of the authority, the connection is not encrypted."""

    user: str = ""
    password: str = ""
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None) or (self.cert is not None and self.ca is None):
            raise ValueError("a TLS client needs its certificate, its key, and the authority's certificate")
        if self.password and not self.user:
            raise ValueError("a password for etcd needs a user")

    def channel(self, endpoint: str, timeout_ms: int) -> grpc.aio.Channel:
        """A channel whose connection attempts time out with the call."""
        options = (*OPTIONS, ("grpc.min_reconnect_backoff_ms", max(timeout_ms, CONNECT_MS_MIN)))
        if self.ca is None:
            return grpc.aio.insecure_channel(endpoint, options=options)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=self.ca.read_bytes(),
            private_key=self.key.read_bytes() if self.key is not None else None,
            certificate_chain=self.cert.read_bytes() if self.cert is not None else None,
        )
        return grpc.aio.secure_channel(endpoint, credentials, options=options)


class EtcdMember:
    """One endpoint and its channel."""

    def __init__(self, endpoint: str, access: Access, timeout_ms: int) -> None:
        self.endpoint = endpoint
        self.channel = access.channel(endpoint, timeout_ms)
        self.kv: Any = rpc.KVStub(self.channel)
        self.lease: Any = rpc.LeaseStub(self.channel)
        self.watch: Any = rpc.WatchStub(self.channel)
        self.auth: Any = rpc.AuthStub(self.channel)
        self.maintenance: Any = rpc.MaintenanceStub(self.channel)
        self.known = False  # its cluster id and version were checked

    async def connected(self) -> bool:
        """Waits until the connection is established; False if it was refused. The caller sets the deadline."""
        while (state := self.channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state in {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}:
                return False
            await self.channel.wait_for_state_change(state)
        return True


# One exchange with a member: (member, seconds left, metadata) -> answer.
Exchange = Callable[[EtcdMember, float, Metadata], Awaitable[T]]


class Connection:
    """All members of one etcd. Owned by one store, on its event loop."""

    def __init__(self, endpoints: Sequence[str], access: Access, clock: Clock, timeout_ms: int) -> None:
        if not endpoints or timeout_ms <= 0:
            raise ValueError("a store on etcd needs an endpoint and a timeout")
        self.timeout_s = timeout_ms / 1000
        self.clock = clock
        self.closed = False
        self._access = access
        self._members = [EtcdMember(endpoint, access, timeout_ms) for endpoint in endpoints]
        self._current = 0
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._cluster_id = 0

    async def close(self) -> None:
        self.closed = True
        for member in self._members:
            await member.channel.close()

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the metadata store is closed")

    async def call(self, exchange: Exchange[T], *, repeatable: bool) -> T:
        """Runs the exchange with a member that answers. Raises StoreUnavailable within the timeout."""
        self.check_open()
        deadline = self.clock.monotonic() + self.timeout_s
        failures: list[str] = []
        for remaining in range(len(self._members), 0, -1):
            left_s = deadline - self.clock.monotonic()
            if left_s <= 0:
                break
            member = self._members[self._current]
            sent = False
            # A member that does not answer may use up half of the time, so that another one can be tried.
            share_s = left_s / 2 if remaining > 1 else left_s
            try:
                async with asyncio.timeout(share_s) as limit:
                    await self._prepare(member)
                    sent = True
                    if not repeatable:
                        limit.reschedule(asyncio.get_running_loop().time() + deadline - self.clock.monotonic())
                    return await self._exchange(member, exchange, _left_s(limit))
            except (TimeoutError, grpc.aio.UsageError) as error:
                failures.append(f"{member.endpoint}: {str(error) or 'no answer in time'}")
            except StoreUnavailable as error:
                failures.append(str(error))
            except asyncio.CancelledError:
                self._check_cancelled()
                raise
            self.suspect(member)
            if sent and not repeatable:
                break
        self.check_open()
        raise StoreUnavailable("; ".join(failures) or "no time left")

    async def pick(self) -> tuple[EtcdMember, Metadata]:
        """A member to open a stream to, and the metadata to send. Raises StoreUnavailable."""

        async def choose(member: EtcdMember, _: float, metadata: Metadata) -> tuple[EtcdMember, Metadata]:
            return member, metadata

        return await self.call(choose, repeatable=True)

    def suspect(self, member: EtcdMember) -> None:
        """Makes the next call use another member."""
        if self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)

    def forget_token(self) -> None:
        self._token = ""

    def _check_cancelled(self) -> None:
        """Raises Closed if closing the channels has cancelled the call, and not the waiting task itself."""
        task = asyncio.current_task()
        if self.closed and task is not None and not task.cancelling():
            raise Closed("the metadata store is closed") from None

    async def _exchange(self, member: EtcdMember, exchange: Exchange[T], left_s: float) -> T:
        for last in (False, True):
            metadata = await self._metadata(member, left_s)
            try:
                return await exchange(member, left_s, metadata)
            except grpc.aio.AioRpcError as error:
                meaning = translate(error, member.endpoint)
                if not isinstance(meaning, StaleToken):
                    raise meaning from error
                self.forget_token()  # a call without valid authentication has changed nothing, so it is repeated
                if last:
                    raise StoreUnavailable(f"{member.endpoint}: {error.details()}") from error
        raise AssertionError("the second attempt returns or raises")

    async def _prepare(self, member: EtcdMember) -> None:
        if not await member.connected():
            raise StoreUnavailable(f"{member.endpoint}: not reachable")
        if not member.known:
            await self._check_member(member)

    async def _check_member(self, member: EtcdMember) -> None:
        try:
            status = await member.maintenance.Status(rpc.StatusRequest())
        except grpc.aio.AioRpcError as error:
            if error.code() in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}:
                member.known = True  # only administrators may read its status
                return
            raise StoreUnavailable(f"{member.endpoint}: {_text(error)}") from error
        if member.known:
            return  # another call was faster
        self._cluster_id = self._cluster_id or status.header.cluster_id
        if status.header.cluster_id != self._cluster_id:
            log.error(
                "endpoint %s belongs to another etcd than the others, and is not used",
                member.endpoint,
                extra={"address": member.endpoint},
            )
            raise StoreUnavailable(f"{member.endpoint}: belongs to another etcd")
        member.known = True
        if not is_sound(status.version):
            log.warning(
                "etcd %s at %s has known defects; run %s or later",
                status.version,
                member.endpoint,
                " or ".join(f"{line[0]}.{line[1]}.{patch}" for line, patch in SOUND_VERSIONS.items()),
                extra={"address": member.endpoint},
            )

    async def _metadata(self, member: EtcdMember, left_s: float) -> Metadata:
        if not self._access.user:
            return (REQUIRE_LEADER,)
        async with self._authenticating:
            if not self._token:
                request = rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
                try:
                    self._token = (await member.auth.Authenticate(request, timeout=left_s)).token
                except grpc.aio.AioRpcError as error:
                    raise StoreUnavailable(f"{member.endpoint}: {_text(error)}") from error
            return REQUIRE_LEADER, ("token", self._token)


def is_sound(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return False
    major, minor, patch = map(int, found.groups())
    if (major, minor) > max(SOUND_VERSIONS):
        return True
    return (major, minor) in SOUND_VERSIONS and patch >= SOUND_VERSIONS[major, minor]


def translate(error: grpc.aio.AioRpcError, endpoint: str) -> Exception:
    """Translates an error of etcd. All but the last row are certain that nothing was changed."""
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAUTHENTICATED or "auth token" in text or "auth store is old" in text:
        return StaleToken(text)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in text:
        return LeaseLost(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in text:
        return LimitExceeded(f"etcd at {endpoint} is full: {text}")
    if code is grpc.StatusCode.INVALID_ARGUMENT and ("too large" in text or "too many operations" in text):
        return ValueError(f"etcd at {endpoint}: {text}")
    return StoreUnavailable(f"{endpoint}: {_text(error)}")


def _text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def _left_s(limit: asyncio.Timeout) -> float:
    when = limit.when()
    assert when is not None
    return max(when - asyncio.get_running_loop().time(), 0.001)
