"""The rules of access and the members of roles: adds, removes and lists them, and explains what they allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from comet.errors import CometError, InvalidArgument
from comet.v1 import admin_pb2 as admin
from comet.wire.protobuf import error_to_pb
from comet_broker.access.client_access import caller
from comet_broker.access.control import AccessControl
from comet_broker.admin.stored_table import StoredTable
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import RULES
from comet_broker.core.rules import (
    ALL,
    Kind,
    Operation,
    RoleMember,
    Rule,
    RuleTable,
    check_member,
    check_role,
    check_rule,
)
from comet_broker.env import Env
from comet_broker.metadata.store import MetadataStore

NEEDS_MAX: Final = 1_000  # of one request


class AdminRules:
    """The coroutines behind the calls; raises CometErrors."""

    def __init__(self, env: Env, *, store: MetadataStore, view: ClusterView, control: AccessControl) -> None:
        self._env = env
        self._table = StoredTable(RULES, RuleTable, "rules", store=store, view=view)
        self._view = view
        self._control = control

    async def add_rule(self, request: admin.AddRuleRequest) -> admin.RuleChange:
        rule = check_rule(self._rule(request.rule))
        return await self._change(rule, lambda table: table.with_rule(rule))

    async def remove_rule(self, request: admin.RemoveRuleRequest) -> admin.RuleChange:
        rule = self._rule(request.rule)
        return await self._change(rule, lambda table: table.without_rule(rule))

    async def list_rules(self, request: admin.ListRulesRequest) -> admin.ListRulesResponse:
        table = self._table.decoded(self._view.state.rules)
        return admin.ListRulesResponse(
            rules=[_rule_to_pb(one) for one in table.rules if request.principal in ("", one.principal)],
            enforced=self._control.enforced,
            superusers=self._control.superusers,
        )

    async def explain_access(self, request: admin.ExplainAccessRequest) -> admin.ExplainAccessResponse:
        # Checked as the rule that would allow it.
        for role in request.roles:
            check_role(role)
        question = check_rule(
            self._rule(
                admin.Rule(
                    principal=request.principal, operations=[request.operation], kind=request.kind, name=request.name
                )
            )
        )
        found = self._control.explain(
            question.principal, question.operations[0], question.kind, question.name, tuple(sorted(set(request.roles)))
        )
        answer = admin.ExplainAccessResponse(allowed=found.allowed, why=found.why)
        if found.rule is not None:
            answer.rule.CopyFrom(_rule_to_pb(found.rule))
        return answer

    async def check_access(self, request: admin.CheckAccessRequest) -> admin.CheckAccessResponse:
        if len(request.needs) > NEEDS_MAX:
            raise InvalidArgument(f"{len(request.needs)} needs in one request; the most is {NEEDS_MAX}")
        access, answers = caller(), list[admin.AccessAnswer]()
        for need in request.needs:
            check_rule(Rule(ALL, "allow", (cast(Operation, need.operation),), cast(Kind, need.kind), need.name))
            answer = admin.AccessAnswer()
            try:
                access.check([(cast(Operation, need.operation), cast(Kind, need.kind), need.name)])
            except CometError as error:
                answer.error.CopyFrom(error_to_pb(error))
            answers.append(answer)
        return admin.CheckAccessResponse(answers=answers, revision=self._control.revision)

    async def grant_role(self, request: admin.GrantRoleRequest) -> admin.RoleChange:
        member = check_member(self._member(request))
        return await self._change_member(member, lambda table: table.with_member(member))

    async def revoke_role(self, request: admin.RevokeRoleRequest) -> admin.RoleChange:
        member = self._member(request)
        return await self._change_member(member, lambda table: table.without_member(member))

    async def list_roles(self, request: admin.ListRolesRequest) -> admin.ListRolesResponse:
        members = self._table.decoded(self._view.state.rules).members
        return admin.ListRolesResponse(
            members=[
                _member_to_pb(one)
                for one in members
                if request.role in ("", one.role) and request.principal in ("", one.principal)
            ],
            enforced=self._control.enforced,
        )

    def _member(self, request: admin.GrantRoleRequest | admin.RevokeRoleRequest) -> RoleMember:
        return RoleMember(request.role, request.principal, caller().principal, self._env.clock.wall_us())

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

    async def _change(self, rule: Rule, change: Callable[[RuleTable], RuleTable]) -> admin.RuleChange:
        before, after = await self._table.change(change)
        return admin.RuleChange(rule=_rule_to_pb(rule), changed=after is not before, enforced=self._control.enforced)

    async def _change_member(self, member: RoleMember, change: Callable[[RuleTable], RuleTable]) -> admin.RoleChange:
        before, after = await self._table.change(change)
        return admin.RoleChange(
            member=_member_to_pb(member), changed=after is not before, enforced=self._control.enforced
        )


def _member_to_pb(member: RoleMember) -> admin.RoleMember:
    return admin.RoleMember(
        role=member.role, principal=member.principal, author=member.author, added_us=member.added_us
    )


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
