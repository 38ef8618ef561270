"""The rules of this cluster, as this broker enforces them.

    metadata store ─► cluster/rules ─► ClusterView ─► AccessControl ─┬─► the ClientAccess of each call and stream
                                                                     └─► restricted: the streams that may do less end

A broker with `superusers` enforces them; those may do everything but write the audit log, so that no rule can lock all
out. A table that cannot be read allows nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from comet.errors import CometError, Forbidden, InvalidArgument
from comet.security.principals import ROLES_MAX
from comet.types import is_internal_topic
from comet.wire.acting import TOKEN, USER, ActingFor
from comet_broker.access.client_access import (
    ANONYMOUS,
    EVERYTHING,
    OF_BROKERS,
    AccessWatch,
    ClientAccess,
    Need,
    is_by_brokers_alone,
)
from comet_broker.access.holder import CredentialHolder
from comet_broker.core.cluster import ClusterState
from comet_broker.core.rules import (
    ALL,
    CompiledRules,
    Decision,
    Kind,
    Operation,
    RuleTable,
    check_principal,
    check_role,
)

log = logging.getLogger(__name__)

_ACTING: Final[Need] = ("alter", "cluster", ALL)  # as an act of administration in the audit log
_ONLY_BROKERS: Final = {name: Decision(False, None, f"only brokers write {what}") for name, what in OF_BROKERS.items()}

Restricted: TypeAlias = Callable[[ClientAccess], bool]  # whether a client may do less than before


class AccessControl:
    """Owned by the broker; on its loop. With a `watch`, every client is checked and noted."""

    def __init__(
        self, superusers: Iterable[str], watch: AccessWatch | None = None, *, gateways: Iterable[str] = ()
    ) -> None:
        self.superusers = tuple(superusers)
        self._gateways = frozenset(gateways)
        self._watch = watch
        self.on_restricted: list[Callable[[Restricted], None]] = []  # called once rules hold that allow less
        self._table = RuleTable()
        self._rules = CompiledRules(())
        self.revision = 0  # of the rules

    @property
    def enforced(self) -> bool:
        return bool(self.superusers)

    @property
    def checked(self) -> bool:
        """Whether clients are told apart at all."""
        return self.enforced or self._watch is not None

    def of(self, principal: str | None, address: str = "") -> ClientAccess:
        """The access of a caller, by the name in its certificate; None: it has none."""
        if principal is None and not self.checked:
            return EVERYTHING
        return self._access(CredentialHolder(principal or ANONYMOUS, ""), address)

    def of_holder(self, holder: CredentialHolder, address: str = "") -> ClientAccess:
        """The access of the holder of an access key or token."""
        return self._access(holder, address)

    def for_user(self, gateway: ClientAccess, user: ActingFor) -> ClientAccess:
        """The access of a gateway's user, for calls of the gateway: by the user's rules, while its credential is good.
        Raises Forbidden, InvalidArgument."""
        error: CometError | None = None
        if not self.enforced or gateway.principal not in self._gateways:
            error = Forbidden(
                f"{gateway.principal} may not act for others",
                details={"hint": f'to allow it, add "{gateway.principal}" to the brokers\' setting gateways'},
            )
        elif user.principal in self.superusers:
            error = Forbidden(f"{gateway.principal} may not act for a superuser: {user.principal}")
        if error is not None:
            if gateway.watch is not None:
                gateway.watch.denied(gateway, _ACTING, error)
            raise error
        check_user(user)
        holder = CredentialHolder(user.principal, gateway.credential, gateway.expires_us, tuple(sorted(user.roles)))
        return self._access(holder, gateway.address, gateway.principal)

    def _access(self, holder: CredentialHolder, address: str, via: str = "") -> ClientAccess:
        unbound = not self.superusers or holder.principal in self.superusers
        allows = self._allows_unbound if unbound else self._allows
        return ClientAccess(
            holder.principal,
            allows if self.checked else None,
            credential=holder.credential,
            expires_us=holder.expires_us,
            roles=holder.roles,
            address=address,
            via=via,
            watch=self._watch,
        )

    def _allows(self, access: ClientAccess, operation: Operation, kind: Kind, name: str) -> bool:
        if access.principal == ANONYMOUS:
            return False
        if name in OF_BROKERS:
            return self._ruled(access.principal, operation, kind, name, access.roles).allowed
        return self._rules.allows(access.principal, operation, kind, name, access.roles)

    def _allows_unbound(self, _: ClientAccess, operation: Operation, kind: Kind, name: str) -> bool:
        return not is_by_brokers_alone(operation, kind, name)

    def explain(
        self, principal: str, operation: Operation, kind: Kind, name: str, roles: tuple[str, ...] = ()
    ) -> Decision:
        if self.checked and is_by_brokers_alone(operation, kind, name):
            return _ONLY_BROKERS[name]
        if not self.superusers:
            return Decision(True, None, "this broker has no superusers, so every client may do everything")
        if principal in self.superusers:
            return Decision(True, None, f"{principal} is a superuser")
        return self._ruled(principal, operation, kind, name, roles)

    def _ruled(self, principal: str, operation: Operation, kind: Kind, name: str, roles: tuple[str, ...]) -> Decision:
        """The decision of the rules. A rule for `*` does not include the topics of brokers, unless it denies."""
        if is_by_brokers_alone(operation, kind, name):
            return _ONLY_BROKERS[name]
        found = self._rules.explain(principal, operation, kind, name, roles)
        rule = found.rule if found.allowed and kind == "topic" and name in OF_BROKERS else None
        if rule is not None and not is_internal_topic(rule.name):  # the most specific of all that allow it
            return Decision(False, None, f"a rule for {rule.name} does not include {OF_BROKERS[name]}: name it")
        return found

    def moved(self, state: ClusterState) -> None:
        """Follows the view."""
        found = state.rules
        revision = 0 if found is None else found.mod_revision
        if revision == self.revision:
            return
        self.revision = revision
        try:
            table = RuleTable() if found is None else RuleTable.decode(found.value)
        except msgspec.DecodeError as error:
            log.error("the rules of access cannot be read, so only superusers may do something: %s", error)
            table = RuleTable()
        before, self._table = self._table, table
        self._rules = CompiledRules(table.rules, table.members)
        names = restricted_by(before, table)
        if names and self.enforced:
            for callback in self.on_restricted:
                callback(
                    lambda access: (
                        access.principal not in self.superusers
                        and not names.isdisjoint((access.principal, *access.roles, ALL))
                    )
                )


def check_user(user: ActingFor) -> None:
    """Raises InvalidArgument unless it is a user that a rule can name."""
    check_principal(user.principal)
    if not user.principal.startswith((USER, TOKEN)):
        raise InvalidArgument(f"a gateway acts for users, such as {USER}ann or {TOKEN}ann, not for {user.principal}")
    if len(user.roles) > ROLES_MAX:
        raise InvalidArgument(f"{user.principal} has {len(user.roles)} roles; the most is {ROLES_MAX}")
    for role in user.roles:
        check_role(role)


def restricted_by(before: RuleTable, after: RuleTable) -> frozenset[str]:
    """The principals, and roles of tokens, that may do less by the second table; `*` for all.

    An allow is gone, a deny has come, or a role with an allow was revoked, or one with a deny was granted."""
    old, new = ({one.identity: one for one in table.rules} for table in (before, after))
    gone = [rule for identity, rule in old.items() if identity not in new and rule.effect == "allow"]
    come = [rule for identity, rule in new.items() if identity not in old and rule.effect == "deny"]
    names = {rule.principal for rule in (*gone, *come)}
    granted, revoked = (
        {one.identity for one in table.members} - {one.identity for one in other.members}
        for table, other in ((after, before), (before, after))
    )
    allowing = {rule.principal for rule in before.rules if rule.effect == "allow"}
    denying = {rule.principal for rule in after.rules if rule.effect == "deny"}
    restricted = {principal for role, principal in revoked if role in allowing}
    restricted |= {principal for role, principal in granted if role in denying}
    restricted |= {one.principal for one in after.members if one.role in names}
    return frozenset(names | restricted)
