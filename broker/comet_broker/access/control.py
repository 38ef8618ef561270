"""The rules of this cluster, as this broker enforces them.

    metadata store ─► cluster/rules ─► ClusterView ─► AccessControl ─┬─► the ClientAccess of each call and stream
                                                                     └─► restricted: the streams that may do less end

A broker with `superusers` enforces them; those may do everything, so that no rule can lock all out. A table that cannot
be read allows nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from comet_broker.access.client_access import ANONYMOUS, EVERYTHING, ClientAccess
from comet_broker.access.holder import CredentialHolder
from comet_broker.core.cluster import ClusterState
from comet_broker.core.rules import ALL, CompiledRules, Decision, Kind, Operation, RuleTable

log = logging.getLogger(__name__)

Restricted: TypeAlias = Callable[[str], bool]  # whether a principal may do less than before


class AccessControl:
    """Owned by the broker; on its loop."""

    def __init__(self, superusers: Iterable[str]) -> None:
        self.superusers = tuple(superusers)
        self.on_restricted: list[Callable[[Restricted], None]] = []  # called once rules hold that allow less
        self._table = RuleTable()
        self._rules = CompiledRules(())
        self._revision = 0

    @property
    def enforced(self) -> bool:
        return bool(self.superusers)

    def of(self, principal: str | None) -> ClientAccess:
        """The access of a caller, by the name in its certificate; None: it has none."""
        if not self.superusers or principal in self.superusers:
            return EVERYTHING if principal is None else ClientAccess(principal)
        return ClientAccess(principal or ANONYMOUS, self._allows)

    def of_holder(self, holder: CredentialHolder) -> ClientAccess:
        """The access of the holder of an access key or token."""
        unbound = not self.superusers or holder.principal in self.superusers
        allows = None if unbound else self._allows
        return ClientAccess(holder.principal, allows, credential=holder.credential, expires_us=holder.expires_us)

    def _allows(self, principal: str, operation: Operation, kind: Kind, name: str) -> bool:
        return principal != ANONYMOUS and self._rules.allows(principal, operation, kind, name)

    def explain(self, principal: str, operation: Operation, kind: Kind, name: str) -> Decision:
        if not self.superusers:
            return Decision(True, None, "this broker has no superusers, so every client may do everything")
        if principal in self.superusers:
            return Decision(True, None, f"{principal} is a superuser")
        return self._rules.explain(principal, operation, kind, name)

    def moved(self, state: ClusterState) -> None:
        """Follows the view."""
        found = state.rules
        revision = 0 if found is None else found.mod_revision
        if revision == self._revision:
            return
        self._revision = revision
        try:
            table = RuleTable() if found is None else RuleTable.decode(found.value)
        except msgspec.DecodeError as error:
            log.error("the rules of access cannot be read, so only superusers may do something: %s", error)
            table = RuleTable()
        before, self._table = self._table, table
        self._rules = CompiledRules(table.rules)
        principals = restricted_by(before, table)
        if principals:
            for callback in self.on_restricted:
                callback(lambda principal: principal in principals or ALL in principals)


def restricted_by(before: RuleTable, after: RuleTable) -> frozenset[str]:
    """The principals that may do less by the second table, `*` for all: an allow is gone, or a deny has come."""
    old, new = ({one.identity: one for one in table.rules} for table in (before, after))
    gone = [rule for identity, rule in old.items() if identity not in new and rule.effect == "allow"]
    come = [rule for identity, rule in new.items() if identity not in old and rule.effect == "deny"]
    return frozenset(rule.principal for rule in (*gone, *come))
