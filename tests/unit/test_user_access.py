"""What a gateway remembers of its users' rights, and how it follows the rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

import comet
from comet.admin.rules import AccessCheck, Need
from comet.errors import CometError, Forbidden, TopicNotFound, Unavailable
from comet_gateway.brokers import user_access
from comet_gateway.brokers.user_access import UserAccess, user_of
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import Problem
from tests.waiting import until

ANN, BOB = Principal("ann", Role.ADMIN), Principal("bob", Role.ADMIN)
READ, WRITE = ("read", "topic", "t"), ("write", "topic", "t")


class Brokers:
    """Stands in for the admin client: brokers with rules, each a user's right."""

    def __init__(self) -> None:
        self.rights: set[tuple[str, Need]] = {("token:ann", READ)}
        self.revision = 1
        self.answering = 1  # the revision that the broker knows which answers a user's questions
        self.asked: list[tuple[str, list[Need]]] = []
        self.polls = 0
        self.problem: CometError | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.access = self
        self.user = ""
        self.roles: Sequence[str] = ()

    def acting_for(self, principal: str, roles: Sequence[str] = ()) -> Any:
        found = object.__new__(Brokers)
        found.__dict__ = {**self.__dict__, "user": principal, "roles": roles, "brokers": self}
        found.access = found
        return found

    async def check(self, needs: list[Need]) -> AccessCheck:
        brokers: Brokers = self.__dict__.get("brokers", self)
        if not needs:
            brokers.polls += 1
        else:
            brokers.asked.append((self.user, needs))
            await brokers.answers.wait()
        if brokers.problem is not None:
            raise brokers.problem
        names = (self.user, *self.roles)
        errors = tuple(
            None if any((name, need) in brokers.rights for name in names) else TopicNotFound("no topic")
            for need in needs
        )
        return AccessCheck(errors, brokers.answering if needs else brokers.revision)

    def change(self, *rights: tuple[str, Need]) -> None:
        self.rights = set(rights)
        self.revision += 1
        self.answering = self.revision


@asynccontextmanager
async def following(brokers: Brokers) -> AsyncIterator[UserAccess]:
    async with UserAccess(lambda: cast(comet.Admin, brokers), enabled=True) as users:
        assert await until(lambda: users._revision == brokers.revision, within_s=10)
        yield users


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_access, "POLL_S", 0.01)


def test_users_of_the_provider_and_tokens_cannot_pass_for_each_other() -> None:
    names = ("ann", "oidc:ann", "oidc:token:ann")
    found = [user_of(Principal(name, Role.VIEWER)).principal for name in names]
    assert found == ["token:ann", "user:ann", "user:token:ann"]


def test_brokers_get_the_roles_of_a_user_of_the_provider() -> None:
    roles = ("role:finance", "role:ops")
    assert user_of(Principal("oidc:ann", Role.VIEWER, roles)) == ("user:ann", roles)
    assert user_of(Principal("ann", Role.VIEWER)) == ("token:ann", ())


async def test_an_answer_is_for_the_roles_of_the_session() -> None:
    brokers = Brokers()
    brokers.rights = {("role:finance", READ)}
    finance, ops = (Principal("oidc:ann", Role.ADMIN, (f"role:{name}",)) for name in ("finance", "ops"))
    async with following(brokers) as users:
        for _ in range(2):
            await users.check(finance, [READ])
            for other in (ops, Principal("oidc:ann", Role.ADMIN)):
                with pytest.raises(Problem, match="no topic"):
                    await users.check(other, [READ])
        assert len(brokers.asked) == 3, "each is remembered by itself"


async def test_an_answer_is_remembered_until_the_rules_change() -> None:
    brokers = Brokers()
    async with following(brokers) as users:
        for _ in range(3):
            await users.check(ANN, [READ])
            with pytest.raises(Problem, match="no topic"):
                await users.check(BOB, [READ])
        assert brokers.asked == [("token:ann", [READ]), ("token:bob", [READ])]
        brokers.change(("token:bob", READ))
        assert await until(lambda: users._revision == 2, within_s=10)
        await users.check(BOB, [READ])
        with pytest.raises(Problem):
            await users.check(ANN, [READ])


async def test_only_what_is_missing_is_asked_and_the_same_once() -> None:
    brokers = Brokers()
    brokers.rights.add(("token:ann", WRITE))
    async with following(brokers) as users:
        await users.check(ANN, [READ])
        brokers.answers.clear()
        both = [asyncio.create_task(users.check(ANN, [READ, WRITE])) for _ in range(40)]
        assert await until(lambda: len(brokers.asked) > 1, within_s=10)
        brokers.answers.set()
        await asyncio.gather(*both)
        assert 2 <= len(brokers.asked) <= 1 + user_access.CHECKS_MAX
        assert all(needs == [WRITE] for _, needs in brokers.asked[1:])


async def test_the_answer_of_a_broker_that_lags_is_not_remembered() -> None:
    brokers = Brokers()
    async with following(brokers) as users:
        brokers.answering = 0
        await users.check(ANN, [READ])
        await users.check(ANN, [READ])
        assert len(brokers.asked) == 2


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_access, "ANSWERS_MAX", 3)
    brokers = Brokers()
    brokers.rights = {("token:ann", ("read", "topic", str(number))) for number in range(10)}
    async with following(brokers) as users:
        for number in range(10):
            await users.check(ANN, [("read", "topic", str(number))])
        assert len(users._answers) == 3


async def test_work_ends_when_its_right_is_taken_away() -> None:
    brokers, ended = Brokers(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with following(brokers) as users:
        working = asyncio.create_task(users.while_allowed(ANN, [READ], work()))
        assert await until(lambda: len(brokers.asked) == 1, within_s=10)
        brokers.change(("token:ann", READ), ("token:bob", READ))
        assert await until(lambda: len(brokers.asked) == 2, within_s=10)
        assert not working.done()
        brokers.change()
        with pytest.raises(Problem, match="no topic"):
            await working
        assert ended.is_set()


async def test_work_that_is_not_allowed_does_not_begin() -> None:
    async def work() -> None:
        raise AssertionError("it began")

    async with following(Brokers()) as users:
        with pytest.raises(Problem, match="no topic"):
            await users.while_allowed(BOB, [READ], work())


async def test_the_result_or_error_of_work_is_its_own() -> None:
    async def fails() -> None:
        raise LookupError("its own")

    async def works() -> int:
        return 7

    async with following(Brokers()) as users:
        assert await users.while_allowed(ANN, [READ], works()) == 7
        with pytest.raises(LookupError, match="its own"):
            await users.while_allowed(ANN, [READ], fails())


async def test_work_is_over_when_its_task_was_cancelled() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with following(Brokers()) as users:
        working = asyncio.create_task(users.while_allowed(ANN, [READ], work()))
        await begun.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert ended.is_set()


async def test_work_goes_on_while_no_broker_answers_and_ends_if_the_gateway_may_not_act() -> None:
    brokers = Brokers()
    async with following(brokers) as users:
        working = asyncio.create_task(users.while_allowed(ANN, [READ], asyncio.Event().wait()))
        assert await until(lambda: len(brokers.asked) == 1, within_s=10)
        brokers.change(("token:ann", READ))
        assert await until(lambda: users._revision == 2, within_s=10)
        brokers.problem = Unavailable("no broker answers")
        brokers.revision = 3
        users._answers.clear()
        users._changed.set()
        assert await until(lambda: len(brokers.asked) > 4, within_s=10)
        assert not working.done()
        brokers.problem = Forbidden("client:gateway may not act for others")
        with pytest.raises(Problem, match="may not act for others"):
            await working


async def test_nothing_remembered_counts_once_no_broker_was_heard_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_access, "UNHEARD_S", 0.2)
    brokers = Brokers()
    async with following(brokers) as users:
        await users.check(ANN, [READ])
        brokers.problem = Unavailable("no broker answers")
        polls = brokers.polls
        assert await until(lambda: brokers.polls > polls + 2, within_s=10)
        assert await until(lambda: users._revision is None, within_s=10)
        with pytest.raises(Problem, match="no broker answers"):
            await users.check(ANN, [READ])
        brokers.problem = None
        await users.check(ANN, [READ])


async def test_without_user_rules_nothing_is_asked() -> None:
    brokers = Brokers()
    async with UserAccess(lambda: cast(comet.Admin, brokers), enabled=False) as users:
        await users.check(BOB, [READ])
        assert await users.while_allowed(BOB, [READ], asyncio.sleep(0, 7)) == 7
        assert users.admin_for(BOB) is cast(Any, brokers)
    assert not brokers.asked and not brokers.polls
