"""The access keys of the cluster: creates, lists and revokes them."""

from __future__ import annotations

from typing import Final

from comet.errors import Forbidden, InvalidArgument
from comet.v1 import admin_pb2 as admin
from comet.wire.bearer import DIGEST_BYTES, ID
from comet_broker.access.client_access import caller
from comet_broker.access.control import AccessControl
from comet_broker.access.keys import AccessKeys
from comet_broker.admin.stored_table import StoredTable
from comet_broker.cluster.view import ClusterView
from comet_broker.core.access_keys import AccessKey, AccessKeyTable
from comet_broker.core.cluster import ACCESS_KEYS
from comet_broker.env import Env
from comet_broker.metadata.store import MetadataStore

_SECOND_US: Final = 1_000_000


class AdminAccessKeys:
    """The coroutines behind the calls; raises CometErrors."""

    def __init__(
        self, env: Env, *, store: MetadataStore, view: ClusterView, control: AccessControl, keys: AccessKeys
    ) -> None:
        self._env = env
        self._table = StoredTable(ACCESS_KEYS, AccessKeyTable, "access keys", store=store, view=view)
        self._view = view
        self._control = control
        self._keys = keys

    async def create_access_key(self, request: admin.CreateAccessKeyRequest) -> admin.AccessKey:
        if not ID.fullmatch(request.id) or len(request.sha256) != DIGEST_BYTES:
            raise InvalidArgument("an access key has an id of 12 hex digits and a SHA-256")
        now_us = self._env.clock.wall_us()
        key = AccessKey(
            id=request.id,
            principal=request.principal,
            sha256=request.sha256.hex(),
            author=caller().principal,
            created_us=now_us,
            expires_us=now_us + request.lifetime_s * _SECOND_US if request.lifetime_s else 0,
        )
        self._check_superuser(key.principal, "create an access key for")
        if key.id in self._keys.in_file:
            raise InvalidArgument(f"another key has the id {key.id}: make a new key")
        _, after = await self._table.change(lambda table: table.with_key(key, now_us))
        return _key_to_pb(after.get(key.id) or key)

    async def list_access_keys(self, request: admin.ListAccessKeysRequest) -> admin.ListAccessKeysResponse:
        in_file = [_key_to_pb(one, in_file=True) for one in self._keys.in_file.values()]
        # Of the view, also where this broker takes none.
        stored = map(_key_to_pb, self._table.decoded(self._view.state.access_keys).keys)
        found = (one for one in (*in_file, *stored) if request.principal in ("", one.principal))
        return admin.ListAccessKeysResponse(keys=found, accepted=self._keys.taken)

    async def revoke_access_key(self, request: admin.RevokeAccessKeyRequest) -> admin.RevokeAccessKeyResponse:
        if request.id in self._keys.in_file:
            raise InvalidArgument(
                f"the access key {request.id} stands in the file `access_keys` of the brokers: remove it there"
            )

        def without(table: AccessKeyTable) -> AccessKeyTable:
            found = table.get(request.id)
            if found is not None:
                self._check_superuser(found.principal, "revoke an access key of")
            return table.without_key(request.id)

        before, after = await self._table.change(without)
        found = before.get(request.id)
        answer = admin.RevokeAccessKeyResponse(revoked=after is not before)
        if found is not None:
            answer.key.CopyFrom(_key_to_pb(found))
        return answer

    def _check_superuser(self, principal: str, act: str) -> None:
        """Only superusers give what no rule can take away. Raises Forbidden."""
        superusers = self._control.superusers
        if principal in superusers and caller().principal not in superusers:
            raise Forbidden(f"{caller().principal} may not {act} the superuser {principal}")


def _key_to_pb(key: AccessKey, *, in_file: bool = False) -> admin.AccessKey:
    return admin.AccessKey(
        id=key.id,
        principal=key.principal,
        author=key.author,
        created_us=key.created_us,
        expires_us=key.expires_us,
        in_file=in_file,
    )
