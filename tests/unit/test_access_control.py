"""The rules that a broker enforces, and how they follow the metadata store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from comet.admin.rules import ResourceKind, RuleOperation
from comet.errors import CometError, Forbidden, GroupNotFound, InvalidArgument, TopicNotFound
from comet.patterns import literal_start
from comet.security.principals import ROLES_MAX
from comet.types import AUDIT_TOPIC
from comet.wire.acting import ActingFor
from comet_broker.access.client_access import EVERYTHING, ClientAccess, Need
from comet_broker.access.control import AccessControl, restricted_by
from comet_broker.access.holder import CredentialHolder
from comet_broker.core.cluster import ClusterState, Versioned
from comet_broker.core.rules import KINDS, OPERATIONS, Effect, Operation, RoleMember, Rule, RuleTable

ME = "client:billing"


def rule(operation: Operation = "read", name: str = "t", *, effect: Effect = "allow", principal: str = ME) -> Rule:
    return Rule(principal, effect, (operation,), "topic", name)


def state_of(*rules: Rule, members: Sequence[RoleMember] = (), revision: int) -> ClusterState:
    state = ClusterState(revision=revision)
    state.rules = Versioned(RuleTable(rules, tuple(members)).encode(), revision, revision)
    return state


class Followed:
    """Access control with a superuser, and the principals whose streams it has ended."""

    def __init__(self, gateways: Sequence[str] = ()) -> None:
        self.control = AccessControl(["client:admin"], gateways=gateways)
        self.ended: list[str] = []
        self.clients = [self.control.of(ME), self.control.of("client:other"), self.control.of("client:admin")]
        self.control.on_restricted.append(
            lambda restricted: self.ended.extend(one.principal for one in self.clients if restricted(one))
        )

    def newly_ended(self) -> list[str]:
        ended, self.ended = self.ended, []
        return ended


def test_the_words_of_the_sdk_are_those_of_the_broker() -> None:
    assert set(RuleOperation) == {operation for possible in OPERATIONS.values() for operation in possible}
    assert tuple(ResourceKind) == KINDS


def test_without_superusers_everyone_may_do_everything() -> None:
    control = AccessControl(())
    assert control.of(None) is EVERYTHING
    assert not control.of(ME).enforced and control.explain(ME, "read", "topic", "t").allowed


def test_without_a_rule_only_superusers_may_do_something() -> None:
    control = Followed().control
    control.of("client:admin").check([("alter", "cluster", "*")])
    for principal in (ME, None, "anonymous"):
        with pytest.raises(Forbidden):
            control.of(principal).check([("alter", "cluster", "*")])


def test_a_client_without_a_certificate_has_no_rules_even_those_for_all() -> None:
    control = Followed().control
    control.moved(state_of(rule(principal="*"), revision=1))
    control.of(ME).check([("read", "topic", "t")])
    with pytest.raises(TopicNotFound):
        control.of(None).check([("read", "topic", "t")])


def test_rules_follow_the_store_and_streams_end_only_where_less_is_allowed() -> None:
    followed = Followed()
    access = followed.control.of(ME)
    followed.control.moved(state_of(rule(), revision=1))
    access.check([("read", "topic", "t")])
    assert not followed.ended
    followed.control.moved(state_of(rule(), rule("read", "u"), revision=2))
    assert not followed.ended, "more is allowed"
    followed.control.moved(state_of(rule("read", "u"), revision=3))
    assert followed.ended == [ME]
    with pytest.raises(TopicNotFound):
        access.check([("read", "topic", "t")])
    followed.control.moved(state_of(rule("read", "u"), rule("read", "x", effect="deny", principal="*"), revision=4))
    assert followed.ended == [ME, ME, "client:other"]


def test_rules_that_cannot_be_read_allow_nothing(caplog: pytest.LogCaptureFixture) -> None:
    followed = Followed()
    followed.control.moved(state_of(rule(), revision=1))
    state = ClusterState(revision=2)
    state.rules = Versioned(b'{"rules":[["client:billing","perhaps",["read"],"topic","t"]]}', 2, 2)
    followed.control.moved(state)
    assert not followed.control.of(ME).allows("read", "topic", "t")
    assert followed.ended == [ME]
    assert "only superusers" in caplog.text


def test_removed_rules_are_gone() -> None:
    followed = Followed()
    followed.control.moved(state_of(rule(), revision=1))
    followed.control.moved(ClusterState(revision=2))
    assert not followed.control.of(ME).allows("read", "topic", "t")


def test_a_role_is_that_of_its_members_and_of_tokens_that_have_it() -> None:
    followed = Followed()
    reader = rule(principal="role:readers")
    followed.control.moved(state_of(reader, members=[RoleMember("role:readers", ME)], revision=1))
    token = followed.control.of_holder(CredentialHolder("user:ann", "kid:one", 7, ("role:readers",)))
    for access in (followed.control.of(ME), token):
        access.check([("read", "topic", "t")])
    for access in (followed.control.of("client:other"), followed.control.of("user:ann")):
        assert not access.allows("read", "topic", "t")
    followed.control.moved(state_of(rule("read", AUDIT_TOPIC, principal="role:readers"), revision=2))
    assert token.allows("read", "topic", AUDIT_TOPIC)
    assert followed.control.explain("user:ann", "read", "topic", AUDIT_TOPIC, ("role:readers",)).allowed


def test_streams_end_when_a_role_is_revoked_or_allows_less() -> None:
    followed = Followed()
    allow, deny = rule(principal="role:a"), rule("write", effect="deny", principal="role:b")
    mine, other, denied = RoleMember("role:a", ME), RoleMember("role:a", "client:other"), RoleMember("role:b", ME)
    followed.clients.append(followed.control.of_holder(CredentialHolder("user:ann", "kid:one", 7, ("role:a",))))
    steps: list[tuple[list[Rule], list[RoleMember], list[str]]] = [
        ([allow], [mine, other], []),
        ([allow], [mine], ["client:other"]),  # revoked
        ([allow, deny], [mine], []),  # it concerns none of them
        ([allow, deny], [mine, denied], [ME]),  # granted, and it denies
        ([allow, deny], [mine, denied, other], []),  # granted, and it allows
        ([deny], [mine, denied, other], [ME, "client:other", "user:ann"]),
        ([deny], [denied, other], []),  # revoked, and it allowed nothing any more
        ([allow, deny], [other], []),  # a deny less
        ([allow, deny, rule("alter", effect="deny", principal="role:a")], [], ["client:other", "user:ann"]),
    ]
    for revision, (rules, members, ended) in enumerate(steps, 1):
        followed.control.moved(state_of(*rules, members=members, revision=revision))
        assert followed.newly_ended() == ended, revision


def test_a_role_makes_no_superuser_and_is_no_client() -> None:
    control = AccessControl(["client:admin"])
    token = control.of_holder(CredentialHolder("user:ann", "kid:one", 7, ("role:admin",)))
    assert not token.allows("alter", "cluster", "*")
    control.moved(state_of(members=[RoleMember("role:admin", "client:admin")], revision=1))
    assert not token.allows("alter", "cluster", "*")


class Watched:
    """Notes what was denied."""

    def __init__(self) -> None:
        self.denials: list[tuple[str, Need, str]] = []

    def denied(self, access: ClientAccess, need: Need, error: CometError) -> None:
        self.denials.append((access.principal, need, error.message))

    def used(self, access: ClientAccess, need: Need) -> None:
        """Allowed."""


GATEWAY = "client:gateway"
ANN = ActingFor("user:ann", ("role:b", "role:a"))


def test_a_gateway_acts_for_a_user_by_the_rules_for_the_user() -> None:
    control = AccessControl(["client:admin"], gateways=[GATEWAY])
    control.moved(state_of(rule(principal="role:a"), rule("write", principal=GATEWAY), revision=1))
    gateway = control.of_holder(CredentialHolder(GATEWAY, "3f9a51c07d42", 7), "ipv4:10.0.0.7:1")
    access = control.for_user(gateway, ANN)
    assert access.allows("read", "topic", "t") and not access.allows("write", "topic", "t")
    shown = (access.principal, access.roles, access.via, access.credential, access.expires_us, access.address)
    assert shown == ("user:ann", ("role:a", "role:b"), GATEWAY, "3f9a51c07d42", 7, "ipv4:10.0.0.7:1")
    with pytest.raises(Forbidden, match="user:ann may not"):
        access.check([("alter", "cluster", "*")])


def test_a_gateway_that_is_a_superuser_acts_for_a_user_with_its_rules_alone() -> None:
    control = AccessControl([GATEWAY], gateways=[GATEWAY])
    assert not control.for_user(control.of(GATEWAY), ANN).allows("read", "topic", "t")


def test_a_gateway_acts_for_users_and_for_tokens() -> None:
    control = AccessControl(["client:admin"], gateways=[GATEWAY])
    for principal in ("user:ann", "token:ann"):
        assert control.for_user(control.of(GATEWAY), ActingFor(principal)).principal == principal


@pytest.mark.parametrize(
    ("caller", "user", "why"),
    [
        (ME, ANN, "client:billing may not act for others"),
        ("client:admin", ANN, "client:admin may not act for others"),
        (None, ANN, "anonymous may not act for others"),
        (GATEWAY, ActingFor("client:admin"), "may not act for a superuser: client:admin"),
    ],
)
def test_only_gateways_act_for_others_and_for_no_superuser(caller: str | None, user: ActingFor, why: str) -> None:
    watch = Watched()
    control = AccessControl(["client:admin"], watch, gateways=[GATEWAY])
    with pytest.raises(Forbidden, match=why):
        control.for_user(control.of(caller), user)
    assert [(one, need) for one, need, _ in watch.denials] == [(caller or "anonymous", ("alter", "cluster", "*"))]


@pytest.mark.parametrize(
    "user",
    [
        ActingFor(""),
        ActingFor("ann"),
        ActingFor("*"),
        ActingFor("anonymous"),
        ActingFor("role:a"),
        ActingFor("client:billing"),
        ActingFor("user:ann", ("finance",)),
        ActingFor("user:ann", ("client:admin",)),
        ActingFor("user:ann", ("",)),
        ActingFor("user:ann", tuple(f"role:{number}" for number in range(ROLES_MAX + 1))),
    ],
)
def test_a_gateway_acts_for_users_that_rules_can_name(user: ActingFor) -> None:
    control = AccessControl(["client:admin"], gateways=[GATEWAY])
    with pytest.raises(InvalidArgument):
        control.for_user(control.of(GATEWAY), user)


def test_without_rules_no_gateway_acts_for_users() -> None:
    control = AccessControl((), gateways=[GATEWAY])
    with pytest.raises(Forbidden, match="anonymous may not act for others"):
        control.for_user(control.of(None), ANN)


def test_the_streams_of_a_user_end_with_its_rules() -> None:
    followed = Followed(gateways=[GATEWAY])
    followed.clients = [followed.control.for_user(followed.control.of(GATEWAY), ANN)]
    followed.control.moved(state_of(rule(principal="user:ann"), rule(principal=GATEWAY), revision=1))
    followed.control.moved(state_of(rule(principal="user:ann"), revision=2))
    assert not followed.newly_ended()
    followed.control.moved(state_of(revision=3))
    assert followed.newly_ended() == ["user:ann"]


def test_a_change_of_author_or_order_restricts_none() -> None:
    first, second = rule(), rule("write")
    other = Rule(ME, "allow", ("read",), "topic", "t", "client:admin", 7)
    assert restricted_by(RuleTable((first, second)), RuleTable((second, other))) == frozenset()


def test_what_may_not_be_described_does_not_exist() -> None:
    access = ClientAccess(ME, lambda _, operation, __, name: name == "seen" and operation == "describe")
    for operation, kind, name, error in (
        ("read", "topic", "seen", Forbidden),
        ("read", "topic", "t", TopicNotFound),
        ("create", "topic", "t", Forbidden),
        ("delete", "group", "g", GroupNotFound),
        ("delete", "group", "seen", Forbidden),
        ("read", "group", "g", Forbidden),
    ):
        with pytest.raises(error):
            access.check([(operation, kind, name)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("pattern", "start"),
    [
        ("orders-.*", "orders-"), ("orders?", "order"), ("a{2}", ""), ("[ab]c", ""), ("a|b", ""), ("x(a|b)", ""),
        ("orders", "orders"), (r"a\.b", "a"), (".*", ""), ("(?:orders)", ""),
    ],
)  # fmt: skip
def test_every_match_of_a_pattern_begins_with_itsliteral_start(pattern: str, start: str) -> None:
    assert literal_start(pattern) == start
