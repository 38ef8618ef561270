"""The quotas of the cluster: sets, lists and removes them."""

from __future__ import annotations

from comet.v1 import admin_pb2 as admin
from comet_broker.access.client_access import caller
from comet_broker.admin.stored_table import StoredTable
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import QUOTAS
from comet_broker.core.quotas import Quota, QuotaTable, check_quota
from comet_broker.env import Env
from comet_broker.metadata.store import MetadataStore


class AdminQuotas:
    """The coroutines behind the calls; raises CometErrors."""

    def __init__(self, env: Env, *, store: MetadataStore, view: ClusterView) -> None:
        self._env = env
        self._table = StoredTable(QUOTAS, QuotaTable, "quotas", store=store, view=view)
        self._view = view

    async def set_quota(self, request: admin.SetQuotaRequest) -> admin.Quota:
        given = request.quota
        quota = check_quota(
            Quota(
                principal=given.principal,
                bytes_in=given.bytes_in,
                bytes_out=given.bytes_out,
                requests=given.requests,
                streams=given.streams,
                author=caller().principal,
                set_us=self._env.clock.wall_us(),
            )
        )
        await self._table.change(lambda table: table.with_quota(quota))
        return _quota_to_pb(quota)

    async def list_quotas(self, request: admin.ListQuotasRequest) -> admin.ListQuotasResponse:
        found = self._table.decoded(self._view.state.quotas).quotas
        return admin.ListQuotasResponse(
            quotas=[_quota_to_pb(one) for one in found if request.principal in ("", one.principal)]
        )

    async def remove_quota(self, request: admin.RemoveQuotaRequest) -> admin.RemoveQuotaResponse:
        before, after = await self._table.change(lambda table: table.without_quota(request.principal))
        return admin.RemoveQuotaResponse(removed=after is not before)


def _quota_to_pb(quota: Quota) -> admin.Quota:
    return admin.Quota(
        principal=quota.principal,
        bytes_in=quota.bytes_in,
        bytes_out=quota.bytes_out,
        requests=quota.requests,
        streams=quota.streams,
        author=quota.author,
        set_us=quota.set_us,
    )
