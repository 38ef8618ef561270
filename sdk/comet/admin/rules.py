"""The rules of access: what clients may do, or may not, also by their roles.

    principal   client:NAME, as its certificate names it, role:NAME for all that have the role, or * for every client
    operations  read, write, create, delete, alter, describe
    kind, name  a topic, group or transaction by its name, or a prefix and *; the cluster by *

A rule that denies overrides all that allow; without a rule nothing is allowed. Brokers with `superusers` enforce them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from comet.admin.parameters import Input
from comet.errors import CometError, InvalidArgument
from comet.types import Int64
from comet.units import count
from comet.v1 import admin_pb2 as admin


class RuleOperation(StrEnum):
    """What a client does.

    >>> comet.RuleOperation("read").name
    'READ'
    """

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"


class ResourceKind(StrEnum):
    """What a client does that with.

    >>> [kind.value for kind in comet.ResourceKind]
    ['topic', 'group', 'transaction', 'cluster']
    """

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTION = "transaction"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of access.

    >>> print(comet.Rule("client:billing", (comet.RuleOperation.READ,), comet.ResourceKind.TOPIC, "invoices"))
    allow client:billing read topic invoices
    """

    principal: str
    operations: tuple[RuleOperation, ...]
    kind: ResourceKind
    name: str
    deny: bool = False
    author: Annotated[str, "The client that added it."] = ""
    added_us: Int64 = 0

    def __str__(self) -> str:
        effect = "deny" if self.deny else "allow"
        return f"{effect} {self.principal} {','.join(self.operations)} {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A rule that was added or removed; not `changed`: it was there before, or was not there.

    >>> rule = comet.Rule("client:billing", (comet.RuleOperation.READ,), comet.ResourceKind.TOPIC, "invoices")
    >>> print(comet.RuleChange(rule, changed=True, enforced=True))
    done: allow client:billing read topic invoices
    """

    rule: Rule
    changed: bool
    enforced: Annotated[bool, "False: the broker has no superusers, so that every client may do everything."]

    def __str__(self) -> str:
        done = "done" if self.changed else "nothing to do"
        return f"{done}: {self.rule}" + ("" if self.enforced else f"; {NOT_ENFORCED}")


@dataclass(frozen=True, slots=True)
class RuleList:
    """All rules, and whether the broker that answers enforces them.

    >>> print(comet.RuleList((), enforced=True, superusers=("client:admin",)))
    0 rules; superusers: client:admin
    """

    rules: tuple[Rule, ...]
    enforced: bool
    superusers: Annotated[tuple[str, ...], "Clients that may do everything, by the broker's settings."]

    def __str__(self) -> str:
        superusers = f"superusers: {', '.join(self.superusers)}"
        return f"{count(len(self.rules), 'rule')}; {superusers if self.enforced else NOT_ENFORCED}"


@dataclass(frozen=True, slots=True)
class RoleMember:
    """A principal that has a role.

    >>> print(comet.RoleMember("role:finance", "client:billing"))
    role:finance of client:billing
    """

    role: str
    principal: str
    author: Annotated[str, "The client that granted it."] = ""
    added_us: Int64 = 0

    def __str__(self) -> str:
        return f"{self.role} of {self.principal}"


@dataclass(frozen=True, slots=True)
class RoleChange:
    """A role that was granted or revoked; not `changed`: the principal had it before, or did not have it.

    >>> print(comet.RoleChange(comet.RoleMember("role:finance", "client:billing"), changed=False, enforced=True))
    nothing to do: role:finance of client:billing
    """

    member: RoleMember
    changed: bool
    enforced: Annotated[bool, "False: the broker has no superusers, so that every client may do everything."]

    def __str__(self) -> str:
        done = "done" if self.changed else "nothing to do"
        return f"{done}: {self.member}" + ("" if self.enforced else f"; {NOT_ENFORCED}")


@dataclass(frozen=True, slots=True)
class RoleList:
    """The members of roles, and whether the broker that answers enforces rules. Roles in tokens are not listed.

    >>> print(comet.RoleList((comet.RoleMember("role:finance", "client:billing"),), enforced=True))
    1 member of 1 role
    """

    members: tuple[RoleMember, ...]
    enforced: bool

    def __str__(self) -> str:
        roles = len({one.role for one in self.members})
        found = f"{count(len(self.members), 'member')} of {count(roles, 'role')}"
        return found if self.enforced else f"{found}; {NOT_ENFORCED}"


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether a client may do something, and why.

    >>> print(comet.AccessDecision(False, "no rule allows it", None))
    no: no rule allows it
    """

    allowed: bool
    why: str
    rule: Annotated[Rule | None, "The rule that decides."]

    def __str__(self) -> str:
        return f"{'yes' if self.allowed else 'no'}: {self.why}"


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """What a client may do.

    >>> comet.AccessCheck((None,), revision=7).errors
    (None,)
    """

    errors: Annotated[tuple[CometError | None, ...], "With which each of the needs would be refused; None: allowed."]
    revision: Annotated[int, "Of the rules; another one: they have changed."]


NOT_ENFORCED: Final = "not enforced: the broker has no superusers"

Need: TypeAlias = tuple[str, str, str]  # operation, kind and name, as in a rule

# Regular expressions. Brokers also refuse a principal with other text that cannot be printed. A role has the same form.
PRINCIPAL: Final = r"[a-z]+:[^\s*\x00-\x1f\x7f-\x9f]{1,256}"
ROLE: Final = r"role:[^\s*\x00-\x1f\x7f-\x9f]{1,256}"
_LISTED_ROLE: Final = r"role:[^\s*,\x00-\x1f\x7f-\x9f]{1,256}"
RULE_NAME: Final = r"^(\*|[A-Za-z0-9_][A-Za-z0-9._-]{0,248}\*?)$"

Principal = Annotated[
    str,
    Input(
        "client:NAME of a certificate, role:NAME, or * for all.",
        pattern=rf"^(\*|{PRINCIPAL})$",
        example="client:billing",
    ),
]
Operations = Annotated[
    Sequence[str],
    Input(
        "read, write, create, delete, alter, describe.",
        pattern=f"^({'|'.join(RuleOperation)})$",
        items_max=len(RuleOperation),
        example=("read",),
        metavar="OPERATION,...",
    ),
]
OneOperation = Annotated[RuleOperation, Input("The operation.", example="read")]
OfPrincipal = Annotated[str, Input("Only the rules of this one.", example="client:billing")]
Role = Annotated[str, Input("role:NAME.", pattern=f"^{ROLE}$", example="role:finance")]
Member = Annotated[str, Input("The principal that has the role.", pattern=f"^{PRINCIPAL}$", example="client:billing")]
OfRole = Annotated[str, Input("Only the members of this one.", example="role:finance")]
OfMember = Annotated[str, Input("Only the roles of this one.", example="client:billing")]
TokenRoles = Annotated[
    str,
    Input(
        "Roles that its token has, beside those that are granted, separated by commas.",
        pattern=rf"^({_LISTED_ROLE}(,{_LISTED_ROLE})*)?$",
        example="role:finance",
    ),
]
RuleKind = Annotated[ResourceKind, Input("Kind of what it is done with; each has its own operations.", example="topic")]
ResourceName = Annotated[
    str, Input("Its name, or a prefix and *; * for the cluster.", pattern=RULE_NAME, example="invoices")
]
Deny = Annotated[bool, Input("Deny instead of allow.")]


def rule_to_pb(rule: Rule) -> admin.Rule:
    return admin.Rule(
        principal=rule.principal,
        deny=rule.deny,
        operations=rule.operations,
        kind=rule.kind,
        name=rule.name,
        author=rule.author,
        added_us=rule.added_us,
    )


def requested(principal: str, operations: Sequence[str], kind: ResourceKind, name: str, *, deny: bool) -> admin.Rule:
    """A rule to add or remove. Raises InvalidArgument for a word that is not an operation."""
    try:
        wanted = tuple(RuleOperation(one) for one in operations)
    except ValueError as error:
        raise InvalidArgument(f"{error}: use {', '.join(RuleOperation)}") from None
    return rule_to_pb(Rule(principal, wanted, kind, name, deny))


def rule_from_pb(rule: admin.Rule) -> Rule:
    return Rule(
        rule.principal,
        tuple(RuleOperation(one) for one in rule.operations),
        ResourceKind(rule.kind),
        rule.name,
        rule.deny,
        rule.author,
        rule.added_us,
    )


def change_from_pb(change: admin.RuleChange) -> RuleChange:
    return RuleChange(rule_from_pb(change.rule), change.changed, change.enforced)


def list_from_pb(answer: admin.ListRulesResponse) -> RuleList:
    return RuleList(tuple(map(rule_from_pb, answer.rules)), answer.enforced, tuple(answer.superusers))


def _member_from_pb(member: admin.RoleMember) -> RoleMember:
    return RoleMember(member.role, member.principal, member.author, member.added_us)


def role_change_from_pb(change: admin.RoleChange) -> RoleChange:
    return RoleChange(_member_from_pb(change.member), change.changed, change.enforced)


def roles_from_pb(answer: admin.ListRolesResponse) -> RoleList:
    return RoleList(tuple(map(_member_from_pb, answer.members)), answer.enforced)


def decision_from_pb(answer: admin.ExplainAccessResponse) -> AccessDecision:
    rule = rule_from_pb(answer.rule) if answer.HasField("rule") else None
    return AccessDecision(answer.allowed, answer.why, rule)
