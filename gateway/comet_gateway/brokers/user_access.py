"""What the gateway's users may do at the brokers, where it acts for them (setting `user_rules`).

    request, frame ─► check ─► remembered answer, else CheckAccess for the user ─► Problem of the broker's error
    subscription   ─► while_allowed: asked again whenever the rules change, and ended when they deny it

Answers hold until the rules change, for which one broker is asked every half second. Acts of administration are no
business of this module: their calls are made for the user, and brokers decide.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import comet
from comet.admin.rules import Need
from comet.errors import CometError, Timeout, Unavailable
from comet.wire.acting import TOKEN, USER, ActingFor
from comet_gateway.http.auth import Principal
from comet_gateway.http.problems import Problem
from comet_gateway.oidc.client import PREFIX as OIDC

T = TypeVar("T")
log = logging.getLogger(__name__)

POLL_S: Final = 0.5  # between two looks whether the rules have changed
UNHEARD_S: Final = 30.0  # without an answer, after which nothing that is remembered counts
ANSWERS_MAX: Final = 100_000
CHECKS_MAX: Final = 16


def user_of(principal: Principal) -> ActingFor:
    """The user as brokers know it, in rules, roles and their audit log: `user:ann` of the identity provider, with the
    roles of its token, as brokers that take its tokens have it; `token:ann` of the tokens file. Neither can pass for
    the other."""
    if principal.name.startswith(OIDC):
        return ActingFor(USER + principal.name.removeprefix(OIDC), principal.broker_roles)
    return ActingFor(TOKEN + principal.name)


def _digest(user: ActingFor) -> bytes:
    """Stands for the user in remembered answers: its roles may take kilobytes."""
    return hashlib.sha256("\n".join((user.principal, *user.roles)).encode()).digest()


class UserAccess:
    """One for an application, entered with its backend, whose admin client it gets. Not `enabled`: users do what the
    gateway may."""

    def __init__(self, admin: Callable[[], comet.Admin], *, enabled: bool) -> None:
        self.enabled = enabled
        self._admin = admin
        self._revision: int | None = None  # of the rules; None: not known
        self._answers: OrderedDict[tuple[bytes, Need], CometError | None] = OrderedDict()
        self._changed = asyncio.Event()  # set when the rules have changed, then replaced
        self._asking = asyncio.Semaphore(CHECKS_MAX)
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self.enabled:
            self._following = asyncio.create_task(self._follow(), name="gateway: follow the rules")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    def admin_for(self, principal: Principal) -> comet.Admin:
        """The client with which acts of this user are done."""
        return self._admin().acting_for(*user_of(principal)) if self.enabled else self._admin()

    def producer_for(self, principal: Principal, producer: comet.Producer) -> comet.Producer:
        """The producer whose delayed records have this user as their author."""
        return producer.acting_for(*user_of(principal)) if self.enabled else producer

    async def check(self, principal: Principal, needs: Iterable[Need]) -> None:
        """Raises the Problem with which brokers would refuse the user, or that none of them answers."""
        if not self.enabled:
            return
        try:
            error = await self._denial(user_of(principal), tuple(needs))
        except CometError as unasked:
            error = unasked
        if error is not None:
            raise Problem.of(error)

    async def _denial(self, user: ActingFor, wanted: tuple[Need, ...]) -> CometError | None:
        """The error of the first that is denied. Raises CometError if brokers cannot be asked."""
        known = self._remembered(user, wanted)
        if len(known) < len(wanted):
            async with self._asking:
                known = self._remembered(user, wanted)  # others may have asked the same meanwhile
                missing = [need for need in wanted if need not in known]
                if missing:
                    known |= await self._request(user, missing)
        return next((error for need in wanted if (error := known[need]) is not None), None)

    async def while_allowed(self, principal: Principal, needs: Iterable[Need], work: Coroutine[Any, Any, T]) -> T:
        """Runs the work, and ends it when the user may not do it any more. Raises that Problem."""
        if not self.enabled:
            return await work
        wanted = tuple(needs)
        try:
            await self.check(principal, wanted)
        except BaseException:
            work.close()
            raise
        working = asyncio.create_task(work)
        denied = asyncio.create_task(self._until_denied(user_of(principal), wanted))
        try:
            await asyncio.wait([working, denied], return_when=asyncio.FIRST_COMPLETED)
            return await (working if working.done() else denied)
        finally:
            for task in (denied, working):
                task.cancel()
            await asyncio.wait([working, denied])

    async def _until_denied(self, user: ActingFor, needs: tuple[Need, ...]) -> NoReturn:
        while True:
            changed = self._changed
            try:
                error = await self._denial(user, needs)
            except (Unavailable, Timeout):
                await asyncio.sleep(POLL_S)  # no broker answers: nothing is delivered either
                continue
            except CometError as unasked:
                error = unasked
            if error is not None:
                raise Problem.of(error)
            await changed.wait()

    def _remembered(self, user: ActingFor, needs: tuple[Need, ...]) -> dict[Need, CometError | None]:
        answers, digest = self._answers, _digest(user)
        return {need: answers[digest, need] for need in needs if (digest, need) in answers}

    async def _request(self, user: ActingFor, needs: list[Need]) -> dict[Need, CometError | None]:
        found = await self._admin().acting_for(*user).access.check(needs)
        answers = dict(zip(needs, found.errors, strict=True))
        if found.revision == self._revision:  # else another broker knows other rules: not to be remembered
            digest = _digest(user)
            self._answers |= {(digest, need): error for need, error in answers.items()}
            while len(self._answers) > ANSWERS_MAX:
                self._answers.popitem(last=False)
        return answers

    async def _follow(self) -> None:
        """Forgets answers when the rules change. Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        heard, problem = loop.time(), ""
        while True:
            try:
                revision: int | None = (await self._admin().access.check([])).revision
            except CometError as error:
                if error.message != problem:
                    log.warning("cannot follow the brokers' rules: %s", error)
                problem = error.message
                revision = self._revision if loop.time() < heard + UNHEARD_S else None
            else:
                heard, problem = loop.time(), ""
            if revision != self._revision:
                self._revision = revision
                self._answers.clear()
                self._changed.set()
                self._changed = asyncio.Event()
            await asyncio.sleep(POLL_S)
