"""What clients may do, and how much: `Admin.access`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from comet.admin import access_keys as keys
from comet.admin import quotas, rules
from comet.v1 import admin_pb2 as admin
from comet.wire.protobuf import error_from_pb

M = TypeVar("M", bound=Message)


class Requester(Protocol):
    """Calls a method of the brokers' Admin service."""

    async def __call__(self, method: str, request: Message, response: type[M]) -> M: ...


class AccessAdmin:
    """Manages rules, roles, access keys and quotas: `Admin.access`.

    >>> async def example(address: str) -> None:
    ...     async with comet.Admin(address) as admin:
    ...         print(await admin.access.list_rules())
    >>> run(example)
    0 rules; not enforced: the broker has no superusers
    """

    def __init__(self, request: Requester) -> None:
        self._request = request

    # ---- rules

    async def add_rule(
        self,
        principal: rules.Principal,
        operations: rules.Operations,
        kind: rules.RuleKind,
        name: rules.ResourceName,
        *,
        deny: rules.Deny = False,
    ) -> rules.RuleChange:
        """Adds a rule: clients may do these operations, or with `deny` may not. A rule that denies overrides all that
        allow. Open streams see it within a second.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.access.add_rule("client:billing", ["read"], comet.ResourceKind.TOPIC, "invoices"))
        >>> run(example)
        done: allow client:billing read topic invoices; not enforced: the broker has no superusers
        """
        request = admin.AddRuleRequest(rule=rules.requested(principal, operations, kind, name, deny=deny))
        return rules.change_from_pb(await self._request("AddRule", request, admin.RuleChange))

    async def remove_rule(
        self,
        principal: rules.Principal,
        operations: rules.Operations,
        kind: rules.RuleKind,
        name: rules.ResourceName,
        *,
        deny: rules.Deny = False,
    ) -> rules.RuleChange:
        """Removes a rule. Open streams see it within a second.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print((await admin.access.remove_rule("*", ["read"], comet.ResourceKind.TOPIC, "*")).changed)
        >>> run(example)
        False
        """
        request = admin.RemoveRuleRequest(rule=rules.requested(principal, operations, kind, name, deny=deny))
        return rules.change_from_pb(await self._request("RemoveRule", request, admin.RuleChange))

    async def list_rules(self, *, principal: rules.OfPrincipal = "") -> rules.RuleList:
        """All rules, or those of a principal; and whether the broker that answers enforces them.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.access.list_rules())
        >>> run(example)
        0 rules; not enforced: the broker has no superusers
        """
        request = admin.ListRulesRequest(principal=principal)
        return rules.list_from_pb(await self._request("ListRules", request, admin.ListRulesResponse))

    async def explain_access(
        self,
        principal: rules.Principal,
        operation: rules.OneOperation,
        kind: rules.RuleKind,
        name: rules.ResourceName,
        *,
        roles: rules.TokenRoles = "",
    ) -> rules.AccessDecision:
        """Whether a client may do something, and the rule that decides.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         read, topic = comet.RuleOperation.READ, comet.ResourceKind.TOPIC
        ...         print(await admin.access.explain_access("*", read, topic, "invoices"))
        >>> run(example)
        yes: this broker has no superusers, so every client may do everything
        """
        request = admin.ExplainAccessRequest(
            principal=principal, operation=operation, kind=kind, name=name, roles=filter(None, roles.split(","))
        )
        return rules.decision_from_pb(await self._request("ExplainAccess", request, admin.ExplainAccessResponse))

    async def check(self, needs: Sequence[rules.Need]) -> rules.AccessCheck:
        """Checks what this client may do.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print((await admin.access.check([("read", "topic", "invoices")])).errors)
        >>> run(example)
        (None,)
        """
        request = admin.CheckAccessRequest(
            needs=[admin.AccessNeed(operation=operation, kind=kind, name=name) for operation, kind, name in needs]
        )
        answer = await self._request("CheckAccess", request, admin.CheckAccessResponse)
        errors = (error_from_pb(one.error) if one.HasField("error") else None for one in answer.answers)
        return rules.AccessCheck(tuple(errors), answer.revision)

    # ---- roles

    async def grant_role(self, role: rules.Role, principal: rules.Member) -> rules.RoleChange:
        """Grants a role to a principal: the rules for the role then hold for it.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.access.grant_role("role:finance", "client:billing"))
        >>> run(example)
        done: role:finance of client:billing; not enforced: the broker has no superusers
        """
        request = admin.GrantRoleRequest(role=role, principal=principal)
        return rules.role_change_from_pb(await self._request("GrantRole", request, admin.RoleChange))

    async def revoke_role(self, role: rules.Role, principal: rules.Member) -> rules.RoleChange:
        """Revokes a role. Open streams see it within a second.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print((await admin.access.revoke_role("role:finance", "client:ann")).changed)
        >>> run(example)
        False
        """
        request = admin.RevokeRoleRequest(role=role, principal=principal)
        return rules.role_change_from_pb(await self._request("RevokeRole", request, admin.RoleChange))

    async def list_roles(self, *, role: rules.OfRole = "", principal: rules.OfMember = "") -> rules.RoleList:
        """The members of all roles, or of one; or the roles of a principal. Those in tokens are not listed.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.access.list_roles())
        >>> run(example)
        0 members of 0 roles; not enforced: the broker has no superusers
        """
        request = admin.ListRolesRequest(role=role, principal=principal)
        return rules.roles_from_pb(await self._request("ListRoles", request, admin.ListRolesResponse))

    # ---- access keys

    async def create_access_key(self, principal: keys.Holder, *, days: keys.Days = 0) -> keys.NewAccessKey:
        """Creates an access key for a principal that has one at most. Brokers get its digest alone: keep its `text`.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         made = await admin.access.create_access_key("client:billing", days=90)
        ...         print(made.text, made.key.principal)
        >>> run(example)
        comet_..._... client:billing
        """
        text, request = keys.creation(principal, days)
        created = await self._request("CreateAccessKey", request, admin.AccessKey)
        return keys.NewAccessKey(text, keys.key_from_pb(created))

    async def list_access_keys(self, *, principal: keys.OfPrincipal = "") -> keys.AccessKeyList:
        """The access keys, or those of a principal; and whether the broker that answers takes them.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.access.list_access_keys())
        >>> run(example)
        0 access keys; not taken: the broker has no setting access_keys
        """
        request = admin.ListAccessKeysRequest(principal=principal)
        return keys.list_from_pb(await self._request("ListAccessKeys", request, admin.ListAccessKeysResponse))

    async def revoke_access_key(self, key_id: keys.AccessKeyId) -> keys.AccessKeyRevocation:
        """Revokes an access key. Its open streams end within a second.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         made = await admin.access.create_access_key("client:billing")
        ...         print(await admin.access.revoke_access_key(made.key.id))
        >>> run(example)
        revoked: ... of client:billing
        """
        request = admin.RevokeAccessKeyRequest(id=key_id)
        answer = await self._request("RevokeAccessKey", request, admin.RevokeAccessKeyResponse)
        return keys.revocation_from_pb(key_id, answer)

    # ---- quotas

    async def set_quota(
        self,
        principal: quotas.Principal,
        *,
        bytes_in: quotas.BytesIn = 0,
        bytes_out: quotas.BytesOut = 0,
        requests: quotas.Requests = 0,
        streams: quotas.Streams = 0,
    ) -> quotas.Quota:
        """Sets what a principal may use of each broker, in place of its earlier quota. Open streams see it within a
        second: a client that sends or reads faster is slowed down, and nothing that it has sent is refused.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.access.set_quota("client:billing", bytes_in=1 << 20))
        >>> run(example)
        client:billing: 1.0 MiB/s in
        """
        quota = admin.Quota(
            principal=principal, bytes_in=bytes_in, bytes_out=bytes_out, requests=requests, streams=streams
        )
        answer = await self._request("SetQuota", admin.SetQuotaRequest(quota=quota), admin.Quota)
        return quotas.quota_from_pb(answer)

    async def list_quotas(self, *, principal: quotas.OfPrincipal = "") -> quotas.QuotaList:
        """The quotas, or the one of a principal.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.access.list_quotas())
        >>> run(example)
        0 quotas
        """
        request = admin.ListQuotasRequest(principal=principal)
        return quotas.list_from_pb(await self._request("ListQuotas", request, admin.ListQuotasResponse))

    async def remove_quota(self, principal: quotas.Principal) -> quotas.QuotaRemoval:
        """Removes the quota of a principal, for which the one of `*` then holds.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.access.remove_quota("client:billing"))
        >>> run(example)
        nothing to do: client:billing has no quota of its own
        """
        request = admin.RemoveQuotaRequest(principal=principal)
        answer = await self._request("RemoveQuota", request, admin.RemoveQuotaResponse)
        return quotas.QuotaRemoval(principal, answer.removed)
