"""The access keys that this broker takes: those of the cluster, and those of a file, with which a cluster begins.

    metadata store ─► cluster/access_keys ─► ClusterView ─┐
    file of the setting `access_keys`, read each second ──┴─► AccessKeys ─┬─► the holder of a key
                                                                          └─► on_ended: the streams of lost keys end

The file is TOML, with digests alone:

    [[key]]
    principal = "client:admin"
    id = "3f9a51c07d42"
    sha256 = "c0ffee…"
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from comet.errors import CredentialsRefused, InvalidArgument, Unavailable
from comet.wire.bearer import ID, digest_of, id_of
from comet_broker.access.holder import CredentialHolder
from comet_broker.core.access_keys import AccessKey, AccessKeyTable
from comet_broker.core.cluster import ClusterState
from comet_broker.core.rules import check_principal
from comet_broker.ports import Clock, Worker

log = logging.getLogger(__name__)

REREAD_S: Final = 1.0
FILE_BYTES_MAX: Final = 1 << 20

Ended: TypeAlias = Callable[[frozenset[str]], None]  # takes the ids of keys that are taken no longer


class AccessKeys:
    """Owned by the broker; on its loop."""

    def __init__(self, file: Path | None, clock: Clock) -> None:
        self.on_ended: list[Ended] = []
        self._file = file
        self._clock = clock
        self.in_file: Mapping[str, AccessKey] = {} if file is None else _by_id(keys_in(file))
        self._stored: Mapping[str, AccessKey] = {}
        self._revision: int | None = None  # None: not loaded yet
        self._problem = ""

    @property
    def taken(self) -> bool:
        return self._file is not None

    def holder(self, text: str) -> CredentialHolder:
        """Of a key. Raises CredentialsRefused, and Unavailable while the cluster's keys are not loaded."""
        key_id = id_of(text) or ""
        found = self.in_file.get(key_id) or self._stored.get(key_id)
        if found is None and self._revision is None:
            raise Unavailable("the access keys of the cluster are not loaded yet", retry_after_ms=200)
        if found is None or not hmac.compare_digest(digest_of(text).hex(), found.sha256):
            message = f"the access key {key_id} is not known: it may have been revoked"
            raise CredentialsRefused(message, details={"reason": "unknown"})
        if found.has_expired(self._clock.wall_us()):
            message = f"the access key {key_id} of {found.principal} has expired"
            raise CredentialsRefused(message, details={"reason": "expired"})
        return CredentialHolder(found.principal, found.id, found.expires_us)

    # ---- changes

    def moved(self, state: ClusterState) -> None:
        """Follows the view."""
        found = state.access_keys
        revision = 0 if found is None else found.mod_revision
        if revision == self._revision:
            return
        self._revision = revision
        try:
            table = AccessKeyTable() if found is None else AccessKeyTable.decode(found.value)
        except msgspec.DecodeError as error:
            log.error("the access keys of the cluster cannot be read, so none of them is taken: %s", error)
            table = AccessKeyTable()
        before, self._stored = self._stored, _by_id(table.keys)
        self._end(before, self._stored)

    async def follow(self, worker: Worker) -> None:
        """Reads the file again. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(REREAD_S)
            await self.reread(worker)

    async def reread(self, worker: Worker) -> None:
        """While the file is not valid, its earlier keys are taken."""
        assert self._file is not None
        try:
            found = _by_id(await worker.run(partial(keys_in, self._file)))
        except InvalidArgument as error:
            if error.message != self._problem:
                log.warning("the earlier access keys of the file are taken: %s", error)
            self._problem = error.message
            return
        self._problem = ""
        before, self.in_file = self.in_file, found
        self._end(before, found)

    def _end(self, before: Mapping[str, AccessKey], after: Mapping[str, AccessKey]) -> None:
        def what_it_proves(key: AccessKey | None) -> object:
            return key and (key.principal, key.sha256)

        gone = frozenset(one for one, key in before.items() if what_it_proves(key) != what_it_proves(after.get(one)))
        if gone:
            for callback in self.on_ended:
                callback(gone)


def _by_id(keys: Iterable[AccessKey]) -> dict[str, AccessKey]:
    return {one.id: one for one in keys}


def keys_in(path: Path) -> list[AccessKey]:
    """The keys in a file. Raises InvalidArgument."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"cannot read the access keys in {path}: {error.strerror or error}") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidArgument(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        rows = tomllib.loads(data.decode()).get("key", [])
        found = [_key(row) for row in rows]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, InvalidArgument, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{path} has no list of access keys: {error}") from None
    if not found:
        raise InvalidArgument(f"{path} has no access key: `comet security init --access-keys` makes a first one")
    if len({one.id for one in found}) < len(found):
        raise InvalidArgument(f"{path} has two keys with the same id")
    return found


def _key(row: dict[str, Any]) -> AccessKey:
    given = {name: row.get(name, "") for name in ("id", "principal", "sha256")}
    unknown = sorted(row.keys() - given.keys())
    if unknown:
        raise InvalidArgument(f"a [[key]] has id, principal and sha256, not {', '.join(unknown)}")
    key = AccessKey(**given)
    if not ID.fullmatch(key.id):
        raise InvalidArgument("the id of a [[key]] is 12 hex digits")
    if len(key.sha256) != 64 or not set(key.sha256) <= set("0123456789abcdef"):
        raise InvalidArgument(f"the sha256 of key {key.id} is 64 hex digits")
    check_principal(key.principal)
    return key
