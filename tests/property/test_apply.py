"""`comet apply` against a model of a cluster: a plan that is carried out reaches the declared state, and the next plan
is empty, also after runs that end anywhere. Only what runs made is ever deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count as counter
from typing import Any, NoReturn

from hypothesis import given
from hypothesis import strategies as st

from comet.admin.quotas import Quota
from comet.admin.rules import ResourceKind, RoleMember, Rule, RuleOperation
from comet.cli.apply.acting import carry_out
from comet.cli.apply.applied import Applied
from comet.cli.apply.cluster_file import read_cluster_file
from comet.cli.apply.declaration import Current, Declaration, DeclaredTopic, limits_of, own_settings
from comet.cli.apply.export import exported
from comet.cli.apply.plan import plan_changes
from comet.entities import PartitionInfo, TopicInfo
from comet.settings.topic import Flush, SettingSource, TopicConfig


class Ended(Exception):
    """The run was killed."""


@dataclass
class Model:
    """A cluster, and the client of it. `ends_at` counts down the calls until the run ends: before the call's effect, or
    after it."""

    topics: dict[str, TopicInfo] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)
    members: dict[str, RoleMember] = field(default_factory=dict)
    quotas: dict[str, Quota] = field(default_factory=dict)
    stored: Applied = field(default_factory=Applied)
    made: set[bytes] = field(default_factory=set)  # ids of topics that runs created
    deleted: list[bytes] = field(default_factory=list)
    ends_at: int = 1_000
    with_effect: bool = False
    ids: Any = field(default_factory=lambda: counter(1))

    @property
    def access(self) -> Model:
        return self

    def current(self) -> Current:
        return Current(dict(self.topics), dict(self.rules), dict(self.members), dict(self.quotas), brokers=3)

    def _call(self) -> bool:
        """Whether the call has an effect; the end of the run comes after it."""
        self.ends_at -= 1
        if self.ends_at < 0:
            raise Ended
        return self.ends_at > 0 or self.with_effect

    def _end(self) -> None:
        if self.ends_at == 0:
            raise Ended

    async def write(self, applied: Applied) -> None:
        if self._call():
            self.stored = Applied.decode(applied.encode())
        self._end()

    def put(self, name: str, partitions: int, replicas: int, settings: Mapping[str, Any]) -> TopicInfo:
        parts = tuple(PartitionInfo(one, 1, 0, tuple(range(1, replicas + 1)), ()) for one in range(partitions))
        sources = dict.fromkeys(settings, SettingSource.TOPIC)
        made = TopicInfo(name, next(self.ids).to_bytes(16, "big"), parts, TopicConfig(**settings), 0, sources)
        assert name not in self.topics
        self.topics[name] = made
        return made

    async def create_topic(self, name: str, *, partitions: int, replicas: int, **settings: Any) -> TopicInfo:
        if not self._call():
            self._stopped()
        made = self.put(name, partitions, replicas or 1, settings)
        self.made.add(made.id)
        self._end()
        return made

    def _stopped(self) -> NoReturn:
        raise Ended

    async def alter_topic(self, name: str, *, unset: list[str], **settings: Any) -> None:
        if self._call():
            topic = self.topics[name]
            values = {one: getattr(TopicConfig(), one) for one in unset} | settings
            sources = {one: source for one, source in topic.sources.items() if one not in unset}
            sources |= dict.fromkeys(settings, SettingSource.TOPIC)
            self.topics[name] = replace(topic, config=replace(topic.config, **values), sources=sources)
        self._end()

    async def add_partitions(self, name: str, total: int) -> None:
        if self._call():
            topic = self.topics[name]
            assert total > topic.partition_count
            more = (replace(topic.partitions[0], partition=one) for one in range(topic.partition_count, total))
            self.topics[name] = replace(topic, partitions=(*topic.partitions, *more))
        self._end()

    async def delete_topic(self, name: str) -> None:
        if self._call():
            self.deleted.append(self.topics.pop(name).id)
        self._end()

    async def add_rule(self, principal: str, operations: Any, kind: Any, name: str, *, deny: bool) -> None:
        if self._call():
            rule = Rule(principal, operations, kind, name, deny)
            self.rules[str(rule)] = rule
        self._end()

    async def remove_rule(self, principal: str, operations: Any, kind: Any, name: str, *, deny: bool) -> None:
        if self._call():
            del self.rules[str(Rule(principal, operations, kind, name, deny))]
        self._end()

    async def grant_role(self, role: str, principal: str) -> None:
        if self._call():
            member = RoleMember(role, principal)
            self.members[str(member)] = member
        self._end()

    async def revoke_role(self, role: str, principal: str) -> None:
        if self._call():
            del self.members[str(RoleMember(role, principal))]
        self._end()

    async def set_quota(self, principal: str, **limits: Any) -> None:
        if self._call():
            self.quotas[principal] = Quota(principal, **limits)
        self._end()

    async def remove_quota(self, principal: str) -> None:
        if self._call():
            del self.quotas[principal]
        self._end()


NAMES = ("a", "b", "c")
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "retention_ms": st.sampled_from([60_000, 7 * 24 * 3600 * 1000]),  # the second is the default, too
        "flush": st.sampled_from([Flush.ALWAYS, Flush.OS]),
    },
)
RULES = st.sampled_from(
    [
        Rule(principal, (RuleOperation.READ,), ResourceKind.TOPIC, name, deny)
        for principal in ("client:x", "*")
        for name in ("a", "b")
        for deny in (False, True)
    ]
)
MEMBERS = st.sampled_from([RoleMember("role:r", f"client:{name}") for name in NAMES])
QUOTAS = st.builds(Quota, st.sampled_from(["*", "client:x"]), requests=st.integers(1, 2), streams=st.integers(0, 1))


@st.composite
def declarations(draw: st.DrawFn) -> Declaration:
    topics = {
        name: DeclaredTopic(
            name, draw(st.none() | st.integers(1, 4)), draw(st.none() | st.integers(1, 2)), draw(SETTINGS)
        )
        for name in draw(st.sets(st.sampled_from(NAMES)))
    }
    rules, members, quotas = draw(st.sets(RULES)), draw(st.sets(MEMBERS)), draw(st.lists(QUOTAS, max_size=2))
    return Declaration(
        "n",
        topics,
        {str(one): one for one in rules},
        {str(one): one for one in members},
        {one.principal: one for one in quotas},
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    model = Model()
    for name in draw(st.sets(st.sampled_from(NAMES))):
        model.put(name, draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(SETTINGS))
    wanted = draw(declarations())
    model.rules, model.members, model.quotas = dict(wanted.rules), dict(wanted.members), dict(wanted.quotas)
    return model


def run(model: Model, wanted: Declaration, **flags: bool) -> bool:
    """Whether the run came to its end; False also if it was refused, before any change."""
    plan = plan_changes(wanted, model.current(), model.stored, **flags)
    if plan.problems:
        return False
    admin: Any = model
    try:
        asyncio.run(carry_out(admin, model, plan, model.stored, lambda _: None))
    except Ended:
        return False
    finally:
        model.ends_at = 1_000
    return True


def check_reached(model: Model, wanted: Declaration) -> None:
    for name, topic in wanted.topics.items():
        found = model.topics[name]
        assert topic.partitions in (None, found.partition_count) and topic.replicas in (None, found.replicas)
        assert own_settings(found) == topic.settings
    assert wanted.rules.keys() <= model.rules.keys() and wanted.members.keys() <= model.members.keys()
    for principal, quota in wanted.quotas.items():
        assert limits_of(model.quotas[principal]) == limits_of(quota)


@given(models(), st.lists(st.tuples(declarations(), st.booleans(), st.integers(1, 12), st.booleans()), max_size=4))
def test_runs_reach_the_declared_state_and_delete_only_what_runs_made(
    model: Model, runs: list[tuple[Declaration, bool, int, bool]]
) -> None:
    foreign: dict[str, Any] = {
        "topics": {one.id for one in model.topics.values()},
        "rules": set(model.rules),
        "members": set(model.members),
        "quotas": set(model.quotas),
    }
    for wanted, prune, ends_at, with_effect in runs:
        undeclared = model.topics.keys() - wanted.topics.keys()
        before = {name: model.topics[name] for name in undeclared}
        model.ends_at, model.with_effect = ends_at, with_effect
        run(model, wanted, prune=prune)
        if run(model, wanted, prune=prune):
            check_reached(model, wanted)
            again = plan_changes(wanted, model.current(), model.stored, prune=prune)
            assert again.steps == () and again.before == model.stored
            assert not again.unsure or any(not known for known in model.stored.topics.values())
            if prune:
                assert not again.left
                kept = set(model.stored.rules), set(model.stored.members), set(model.stored.quotas)
                assert kept[0] <= wanted.rules.keys()
                assert kept[1] <= wanted.members.keys() and kept[2] <= wanted.quotas.keys()
        else:  # refused
            assert plan_changes(wanted, model.current(), model.stored, prune=prune).problems
        if not prune:
            assert {name: model.topics.get(name) for name in undeclared} == before
        assert set(model.deleted) <= model.made
        assert foreign["topics"] <= {one.id for one in model.topics.values()}
        assert foreign["rules"] <= model.rules.keys() and foreign["members"] <= model.members.keys()
        assert foreign["quotas"] <= model.quotas.keys()


@given(models(), declarations())
def test_what_a_file_made_or_adopted_goes_with_it(model: Model, wanted: Declaration) -> None:
    before = set(model.topics)
    if not run(model, wanted, adopt=True):
        return
    assert run(model, Declaration("n"), prune=True)
    assert set(model.topics) == before - wanted.topics.keys()
    assert not model.rules.keys() & wanted.rules.keys() and not model.quotas.keys() & wanted.quotas.keys()
    assert model.stored == Applied()


@given(models(), declarations())
def test_a_topic_that_was_made_otherwise_under_the_name_is_not_deleted(model: Model, wanted: Declaration) -> None:
    if not run(model, wanted):
        return
    recreated = []
    for name in wanted.topics:
        del model.topics[name]
        recreated.append(model.put(name, 1, 1, {}).id)
    assert run(model, Declaration("n"), prune=True)
    assert set(recreated) <= {one.id for one in model.topics.values()}


@given(models())
def test_an_export_is_a_file_that_makes_the_same_cluster(model: Model) -> None:
    text = exported(model.current())
    wanted = read_cluster_file("export", text.encode())
    assert plan_changes(wanted, model.current(), Applied()).steps == ()
    other = Model()
    assert run(other, wanted)
    assert exported(other.current()) == text
