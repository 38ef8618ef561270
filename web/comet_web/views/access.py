"""The page of access: rules, roles, access keys, quotas, and why a principal may do something or may not. Pure.

Its query parameters: `principal`, `operation`, `kind`, `name`, `roles` of a question, beside those of its tables.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Final

from comet.wire.expiry import expiry_text
from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, Cell, Column, Document, Row
from comet_web.facts import Access, AccessRule, GrantedRole, IssuedKey, PrincipalQuota, Question
from comet_web.health import expires_soon
from comet_web.page_request import PageRequest

RULES: Final = (
    Column("principal", "Principal", wide=False),
    Column("effect", "Effect", wide=False),
    Column("operations", "Operations", wide=False),
    Column("kind", "Kind"),
    Column("name", "Name", wide=False, title="Exact, or a prefix and *"),
    Column("author", "Author"),
    Column("added", "Added", numeric=True),
)
ROLES: Final = (
    Column("role", "Role", wide=False),
    Column("principal", "Member", wide=False),
    Column("rules", "Rules", numeric=True, title="Rules for the role"),
    Column("author", "Granted by"),
    Column("granted", "Granted", numeric=True),
)
KEYS: Final = (
    Column("id", "Key", wide=False),
    Column("principal", "Principal", wide=False),
    Column("author", "Created by"),
    Column("created", "Created", numeric=True),
    Column("expires", "Expires", wide=False),
)
QUOTAS: Final = (
    Column("principal", "Principal", wide=False, title="*: each one without a quota of its own"),
    Column("bytes_in", "In", unit="B/s", numeric=True, wide=False),
    Column("bytes_out", "Out", unit="B/s", numeric=True, wide=False),
    Column("requests", "Requests", unit="/s", numeric=True),
    Column("streams", "Streams", numeric=True),
    Column("author", "Author"),
    Column("set", "Set", numeric=True),
)


def view(access: Access, request: PageRequest) -> Document:
    now_us = access.time_us
    rules = [_rule(rule, now_us) for rule in access.rules]
    ruled = Counter(rule.principal for rule in access.rules)
    roles = [_role(role, ruled[role.role], now_us) for role in access.roles]
    keys = [_key(key, now_us) for key in access.keys]
    quotas = [_quota(quota, now_us) for quota in access.quotas]
    return Document(
        now_us,
        "Access",
        fields={
            "enforced": _enforced(access),
            "keys_taken": Cell(
                ""
                if access.keys_taken
                else "Not taken: the broker that answers has no setting access_keys, so clients present none."
            ),
            **_answer(access.question),
        },
        tables={
            "rules": shaped("rules", RULES, rules, request, sort="principal", text=_text),
            "roles": shaped("roles", ROLES, roles, request, main=False, sort="role"),
            "keys": shaped("keys", KEYS, keys, request, main=False, sort="principal"),
            "quotas": shaped("quotas", QUOTAS, quotas, request, main=False, sort="principal"),
        },
    )


def _text(row: Row) -> str:
    return " ".join(cell.text for cell in row.cells[:6])


def _enforced(access: Access) -> Cell:
    if access.enforced:
        return Cell(f"Rules are enforced. Superusers may do everything: {', '.join(access.superusers)}.", tone="good")
    return Cell(
        "Rules are not enforced: the broker that answers has no superusers, so every client may do everything. Name "
        "superusers in the settings of every broker.",
        tone="warn",
    )


# ---- rows


def rule_key(rule: AccessRule) -> str:
    """The identity of a rule: the body of the request that removes it."""
    return json.dumps(
        {
            "principal": rule.principal,
            "operations": list(rule.operations),
            "kind": rule.kind,
            "name": rule.name,
            "deny": rule.deny,
        }
    )


def rule_text(rule: AccessRule) -> str:
    """As commands write it."""
    effect = "deny" if rule.deny else "allow"
    return f"{effect} {rule.principal} {','.join(rule.operations)} {rule.kind} {rule.name}"


def _signed(rule: AccessRule) -> str:
    return rule_text(rule) + (f", added by {rule.author}" if rule.author else "")


def _rule(rule: AccessRule, now_us: int) -> Row:
    cells = (
        Cell(rule.principal),
        Cell("deny", tone="bad", title="overrides all rules that allow") if rule.deny else Cell("allow", tone="good"),
        Cell(", ".join(rule.operations)),
        Cell(rule.kind),
        Cell(rule.name),
        Cell(rule.author or DASH),
        numbers.ago(rule.added_us, now_us),
    )
    return Row(rule_key(rule), cells, label=rule_text(rule))


def role_key(role: GrantedRole) -> str:
    """The identity of a member: the body of the request that revokes its role."""
    return json.dumps({"role": role.role, "principal": role.principal})


def _role(role: GrantedRole, rules: int, now_us: int) -> Row:
    cells = (
        Cell(role.role),
        Cell(role.principal),
        numbers.count(rules) if rules else Cell("none", 0, "warn", "The role allows nothing until a rule is for it"),
        Cell(role.author or DASH),
        numbers.ago(role.granted_us, now_us),
    )
    return Row(role_key(role), cells, label=f"{role.role} of {role.principal}")


def _key(key: IssuedKey, now_us: int) -> Row:
    author = Cell("the brokers' file", tone="muted", title="It is removed there") if key.in_file else Cell(key.author)
    cells = (Cell(key.id), Cell(key.principal), author, numbers.ago(key.created_us, now_us), _expiry(key, now_us))
    return Row(key.id, cells, label=f"key {key.id} of {key.principal}")


def _expiry(key: IssuedKey, now_us: int) -> Cell:
    if key.expires_us is None:
        return Cell("never", 2**62, tone="muted")
    tone = "bad" if key.expires_us <= now_us else "warn" if expires_soon(key, now_us) else ""
    return Cell(expiry_text(key.expires_us, now_us), key.expires_us, tone, numbers.moment_text(key.expires_us))


def _quota(quota: PrincipalQuota, now_us: int) -> Row:
    cells = (
        Cell(quota.principal, title="each principal without a quota of its own" if quota.principal == "*" else ""),
        numbers.size(quota.bytes_in) if quota.bytes_in else _no_limit(),
        numbers.size(quota.bytes_out) if quota.bytes_out else _no_limit(),
        numbers.count(quota.requests) if quota.requests else _no_limit(),
        numbers.count(quota.streams) if quota.streams else _no_limit(),
        Cell(quota.author or DASH),
        numbers.ago(quota.set_us, now_us),
    )
    return Row(quota.principal, cells, label=f"quota of {quota.principal}")


def _no_limit() -> Cell:
    return Cell("no limit", 2**62, tone="muted")


# ---- the question


def _answer(question: Question | None) -> dict[str, Cell]:
    if question is None:
        return {"answer": Cell(""), "why": Cell(""), "deciding": Cell("")}
    if question.problem:
        return {"answer": Cell(question.problem, tone="bad"), "why": Cell(""), "deciding": Cell("")}
    what = "the cluster" if question.kind == "cluster" else f"{question.kind} {question.name}"
    verb = "may" if question.allowed else "may not"
    subject = f"{question.principal} with {', '.join(question.roles)}" if question.roles else question.principal
    return {
        "answer": Cell(
            f"{'Yes' if question.allowed else 'No'}: {subject} {verb} {question.operation} {what}",
            tone="good" if question.allowed else "bad",
        ),
        "why": Cell(f"Reason: {question.why}"),
        "deciding": Cell("" if question.rule is None else f"Deciding rule: {_signed(question.rule)}"),
    }
