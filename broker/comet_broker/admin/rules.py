"""The rules of access: adds, removes and lists them, and explains what they allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from comet.errors import InvalidArgument, Timeout, Unavailable
from comet.v1 import admin_pb2 as admin
from comet_broker.access.client_access import caller
from comet_broker.access.control import AccessControl
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import RULES
from comet_broker.core.rules import Kind, Operation, Rule, RuleTable, check_rule
from comet_broker.env import Env
from comet_broker.metadata.store import Compare, MetadataStore, Put, StoreUnavailable

SWAP_ATTEMPTS_MAX = 16


class AdminRules:
    """The coroutines behind the calls; raises CometErrors."""

    def __init__(self, env: Env, *, store: MetadataStore, view: ClusterView, control: AccessControl) -> None:
        self._env = env
        self._store = store
        self._view = view
        self._control = control

    async def add_rule(self, request: admin.AddRuleRequest) -> admin.RuleChange:
        rule = check_rule(self._rule(request.rule))
        return await self._swap(rule, lambda table: table.with_rule(rule))

    async def remove_rule(self, request: admin.RemoveRuleRequest) -> admin.RuleChange:
        rule = self._rule(request.rule)
        return await self._swap(rule, lambda table: table.without_rule(rule))

    async def list_rules(self, request: admin.ListRulesRequest) -> admin.ListRulesResponse:
        found = self._view.state.rules
        table = RuleTable() if found is None else _table(found.value)
        return admin.ListRulesResponse(
            rules=[_rule_to_pb(one) for one in table.rules if request.principal in ("", one.principal)],
            enforced=self._control.enforced,
            superusers=self._control.superusers,
        )

    async def explain_access(self, request: admin.ExplainAccessRequest) -> admin.ExplainAccessResponse:
        # Checked as the rule that would allow it.
        question = check_rule(
            self._rule(
                admin.Rule(
                    principal=request.principal, operations=[request.operation], kind=request.kind, name=request.name
                )
            )
        )
        found = self._control.explain(question.principal, question.operations[0], question.kind, question.name)
        answer = admin.ExplainAccessResponse(allowed=found.allowed, why=found.why)
        if found.rule is not None:
            answer.rule.CopyFrom(_rule_to_pb(found.rule))
        return answer

    def _rule(self, rule: admin.Rule) -> Rule:
        return Rule(
            principal=rule.principal,
            effect="deny" if rule.deny else "allow",
            operations=tuple(cast(Operation, one) for one in rule.operations),
            kind=cast(Kind, rule.kind),
            name=rule.name,
            author=caller().principal,
            added_us=self._env.clock.wall_us(),
        )

    async def _swap(self, rule: Rule, change: Callable[[RuleTable], RuleTable]) -> admin.RuleChange:
        """Reads the table, changes it and writes it back; retries if another change came first."""
        for _ in range(SWAP_ATTEMPTS_MAX):
            try:
                item = await self._store.get(RULES)
            except StoreUnavailable as error:
                raise Unavailable(f"the metadata store did not answer: {error}") from error
            before = RuleTable() if item is None else _table(item.value)
            after = change(before)
            answer = admin.RuleChange(
                rule=_rule_to_pb(rule), changed=after is not before, enforced=self._control.enforced
            )
            if after is before:
                return answer
            compare = Compare(RULES, 0 if item is None else item.mod_revision)
            try:
                result = await self._store.transact([compare], [Put(RULES, after.encode())])
            except StoreUnavailable as error:
                text = f"the metadata store did not answer; the change may or may not be made: {error}"
                raise Timeout(text) from error
            if result.applied:
                await self._view.applied.wait(result.revision)
                return answer
        raise Unavailable(f"the rules were changed concurrently {SWAP_ATTEMPTS_MAX} times; try again")


def _table(value: bytes) -> RuleTable:
    try:
        return RuleTable.decode(value)
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f"the stored rules cannot be read: {error}; a newer version may have written them"
        ) from error


def _rule_to_pb(rule: Rule) -> admin.Rule:
    return admin.Rule(
        principal=rule.principal,
        deny=rule.effect == "deny",
        operations=rule.operations,
        kind=rule.kind,
        name=rule.name,
        author=rule.author,
        added_us=rule.added_us,
    )
