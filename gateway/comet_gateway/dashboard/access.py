"""Facts about access: rules, roles, access keys, quotas, and answers of `explain`. All calls to brokers are here."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

import comet
from comet.errors import CometError, InvalidArgument
from comet_gateway.dashboard.broker_pool import ANSWER_S
from comet_gateway.dashboard.sources import Sources
from comet_web import facts
from comet_web.page_request import PageRequest

RECENT_S: Final = 0.5  # that an answer is reused for several users
KEYS_S: Final = 60.0  # between two looks at what expires, for pages about other things
_ROLE: Final = "role:"


async def access(sources: Sources, request: PageRequest) -> facts.Access:
    """The loader of the page. Raises CometError."""
    query = sources.sampler.query
    rules, roles, keys, quotas, question = await asyncio.gather(
        sources.recently(("rules",), RECENT_S, lambda: query(lambda admin: admin.access.list_rules())),
        sources.recently(("roles",), RECENT_S, lambda: query(lambda admin: admin.access.list_roles())),
        sources.recently(("access keys",), RECENT_S, lambda: query(lambda admin: admin.access.list_access_keys())),
        sources.recently(("quotas",), RECENT_S, lambda: query(lambda admin: admin.access.list_quotas())),
        _explained(sources, request),
    )
    return facts.Access(
        time.time_ns() // 1_000,
        enforced=rules.enforced,
        superusers=rules.superusers,
        rules=tuple(map(_rule, rules.rules)),
        roles=tuple(map(_role, roles.members)),
        keys_taken=keys.accepted,
        keys=tuple(map(_key, keys.keys)),
        quotas=tuple(map(_quota, quotas.quotas)),
        question=question,
    )


async def issued_keys(sources: Sources) -> tuple[facts.IssuedKey, ...]:
    """The access keys as of the last minute; none if brokers do not tell them."""
    return await sources.recently(("issued keys",), KEYS_S, lambda: _issued_keys(sources))


async def _issued_keys(sources: Sources) -> tuple[facts.IssuedKey, ...]:
    with suppress(CometError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            return tuple(map(_key, (await sources.sampler.query(lambda admin: admin.access.list_access_keys())).keys))
    return ()


def question_of(request: PageRequest) -> facts.Question | None:
    """The question in the address. A name without a kind of credential is that of a certificate or key, and one among
    the roles that of a role."""
    query = request.query
    principal = query.get("principal", "").strip()
    if not principal:
        return None
    if principal != "*" and ":" not in principal:
        principal = f"client:{principal}"
    kind = query.get("kind", facts.RULE_KINDS[0])
    name = "*" if kind == "cluster" else query.get("name", "").strip()
    roles = tuple(
        word if word.startswith(_ROLE) else _ROLE + word for word in query.get("roles", "").replace(",", " ").split()
    )
    found = facts.Question(principal, query.get("operation", facts.RULE_OPERATIONS[0]), kind, name, roles)
    return found if name else replace(found, problem=f"Name the {kind}")


async def _explained(sources: Sources, request: PageRequest) -> facts.Question | None:
    question = question_of(request)
    if question is None or question.problem:
        return question
    try:
        operation, kind = comet.RuleOperation(question.operation), comet.ResourceKind(question.kind)
        decision = await sources.sampler.query(
            lambda admin: admin.access.explain_access(
                question.principal, operation, kind, question.name, roles=",".join(question.roles)
            )
        )
    except ValueError as error:
        return replace(question, problem=str(error))
    except InvalidArgument as error:
        return replace(question, problem=error.message)
    rule = None if decision.rule is None else _rule(decision.rule)
    return replace(question, allowed=decision.allowed, why=decision.why, rule=rule)


def _rule(rule: comet.Rule) -> facts.AccessRule:
    operations = tuple(operation.value for operation in rule.operations)
    return facts.AccessRule(
        rule.principal, operations, rule.kind.value, rule.name, rule.deny, rule.author, rule.added_us or None
    )


def _role(member: comet.RoleMember) -> facts.GrantedRole:
    return facts.GrantedRole(member.role, member.principal, member.author, member.added_us or None)


def _key(key: comet.AccessKey) -> facts.IssuedKey:
    return facts.IssuedKey(key.id, key.principal, key.author, key.created_us, key.expires_us, key.in_file)


def _quota(quota: comet.Quota) -> facts.PrincipalQuota:
    return facts.PrincipalQuota(
        quota.principal, quota.bytes_in, quota.bytes_out, quota.requests, quota.streams, quota.author, quota.set_us
    )
