"""Alerts of one gateway: it follows the journal, takes changes, and evaluates while its group has chosen it.

    journal ─► AlertBook ─► pages, API                       in every gateway
    group `__alerts`: one partition, so one member has it ─► that gateway evaluates once a second, and delivers

When that gateway ends, the group gives the partition to another one, after its session has timed out if it was killed.
The next one reads the journal to its end and continues: with the state of each rule, and with what is not delivered.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

import comet
from comet.errors import CometError, Unavailable
from comet.types import ALERTS_TOPIC, TopicPartition
from comet_gateway.alerts import journal
from comet_gateway.alerts.delivery import Deliveries, delivered
from comet_gateway.alerts.evaluation import Observation, decide
from comet_gateway.alerts.journal import Notice, RuleState
from comet_gateway.alerts.log import WAITING, AlertLog
from comet_gateway.alerts.observing import of_cluster
from comet_gateway.alerts.rule import RULES_MAX, BrowserChannel, Rule, check
from comet_gateway.alerts.senders import Senders
from comet_gateway.alerts.watching import RecordWatches
from comet_gateway.alerts.webhook import DeliveryFailed
from comet_gateway.http.problems import Problem
from comet_gateway.push.hub import Hub
from comet_web import facts

log = logging.getLogger(__name__)

GROUP: Final = "__alerts"
TICK_S: Final = 1.0
AGAIN_S: Final = 2.0  # between two attempts to join the group
SESSION_MS: Final = 10_000
TESTS_MAX: Final = 4  # at once
PAGES_MAX: Final = 1_000  # that hear of notices at once
UNHEARD_MAX: Final = 20  # notices that wait for a page

Cluster = Callable[[], Awaitable[facts.Cluster]]


class Alerts:
    """One for an application, entered after its backend, hub and sampler. `clock_us` is the wall clock."""

    def __init__(
        self,
        bootstrap: str,
        admin: comet.Admin,
        producer: comet.Producer,
        hub: Hub,
        cluster: Cluster,
        senders: Senders,
        *,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self.log = AlertLog(bootstrap, admin, producer, self._tell_pages)
        self.evaluates = False
        self._bootstrap = bootstrap
        self._hub = hub
        self._cluster = cluster
        self._senders = senders
        self._clock_us = clock_us
        self._assigned = asyncio.Event()
        self._pages: set[asyncio.Queue[Notice]] = set()
        self._testing = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(work(), name=f"alerts: {name}")
            for name, work in (("follow", self.log.follow), ("join", self._join), ("evaluate", self._evaluate))
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in reversed(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._senders.close()

    # ---- what people do

    def states(self) -> list[RuleState]:
        """All rules, by name. Raises UNAVAILABLE while the journal is being read."""
        if not self.log.ready:
            raise Problem("UNAVAILABLE", self.log.problem or WAITING)
        return sorted(self.log.book.rules.values(), key=lambda one: (one.rule.name.casefold(), one.rule.id))

    def state(self, id_: str) -> RuleState:
        """Raises ALERT_NOT_FOUND."""
        self.states()
        found = self.log.book.rules.get(id_)
        if found is None:
            raise Problem("ALERT_NOT_FOUND", f"alert {id_[:50]!r} does not exist")
        return found

    async def store(self, rule: Rule) -> RuleState:
        """Adds a rule, or replaces the one with its id. Raises Problem, CometError."""
        check(rule)
        known = {one.rule.id for one in self.states()}
        if rule.id not in known and len(known) >= RULES_MAX:
            raise Problem("LIMIT_EXCEEDED", f"there are {RULES_MAX} alerts, the limit; delete one that you do not need")
        await self.log.create()
        await self.log.write([journal.RuleStored(rule)])
        return self.state(rule.id)

    async def delete(self, id_: str, by: str) -> None:
        self.state(id_)
        await self.log.write([journal.RuleDeleted(id_, by, self._clock_us())])

    async def mute(self, id_: str, seconds: int, by: str) -> RuleState:
        """No notices for that time; 0 ends it."""
        self.state(id_)
        now_us = self._clock_us()
        await self.log.write([journal.Muted(id_, now_us + seconds * 1_000_000 if seconds else 0, by, now_us)])
        return self.state(id_)

    async def acknowledge(self, id_: str, by: str) -> RuleState:
        """Marks the present firing as known. Raises ALERT_NOT_FIRING."""
        known = self.state(id_)
        if known.state != "firing":
            raise Problem("ALERT_NOT_FIRING", f"alert {known.rule.name!r} is {known.state}")
        await self.log.write([journal.Acknowledgement(id_, known.number, by, self._clock_us())])
        return self.state(id_)

    async def test(self, id_: str) -> list[journal.Delivered]:
        """Sends a test notice to each channel, once, from this gateway. Raises TOO_MANY_REQUESTS."""
        known = self.state(id_)
        if self._testing >= TESTS_MAX:
            raise Problem("TOO_MANY_REQUESTS", f"{TESTS_MAX} tests are under way, the limit")
        now_us = self._clock_us()
        notice = Notice(
            f"{id_}-{secrets.token_hex(4)}-test",
            "test",
            now_us,
            known.rule,
            known.value,
            "a test",
            known.since_us or now_us,
        )
        self._testing += 1
        try:
            found = list(await asyncio.gather(*(self._tested(notice, at) for at in range(len(known.rule.channels)))))
        finally:
            self._testing -= 1
        await self.log.write(found)
        return found

    async def _tested(self, notice: Notice, at: int) -> journal.Delivered:
        channel = notice.rule.channels[at]
        error = ""
        if isinstance(channel, BrowserChannel):
            if not self._pages:
                error = "no page is open that shows notifications"
            self._tell_pages(notice)
        else:
            try:
                await self._senders.send(channel, notice)
            except DeliveryFailed as failed:
                error = str(failed)
        return delivered(notice, at, error, 1, self._clock_us())

    # ---- pages

    def page(self) -> asyncio.Queue[Notice]:
        """Notices for one page, until `leave`. Raises OVERLOADED."""
        if len(self._pages) >= PAGES_MAX:
            raise Problem("OVERLOADED", f"{PAGES_MAX} pages show notifications, the limit")
        queue: asyncio.Queue[Notice] = asyncio.Queue(UNHEARD_MAX)
        self._pages.add(queue)
        return queue

    def leave(self, page: asyncio.Queue[Notice]) -> None:
        self._pages.discard(page)

    def _tell_pages(self, notice: Notice) -> None:
        if not any(isinstance(channel, BrowserChannel) for channel in notice.rule.channels):
            return
        for page in self._pages:
            if page.full():  # it does not read; the newest matter
                page.get_nowait()
            page.put_nowait(notice)

    # ---- the group

    async def _join(self) -> None:
        while True:
            if not self.log.exists:
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                await self._belong()
            except CometError as error:
                log.warning("alerts: this gateway is not in group %s: %s", GROUP, error, extra={"group": GROUP})
            finally:
                self._assigned.clear()
            await asyncio.sleep(AGAIN_S)

    async def _belong(self) -> None:
        """A member of the group, which reads nothing of interest: its assignment is what counts."""
        async with comet.GroupConsumer(
            self._bootstrap,
            ALERTS_TOPIC,
            group=GROUP,
            name="alerts",
            start="latest",
            session_timeout_ms=SESSION_MS,
            on_corrupt="skip",
            on_out_of_range="latest",
            on_assigned=self._gained,
            on_revoked=self._lost,
            on_lost=self._lost,
        ) as consumer:
            async for _ in consumer:
                pass

    def _gained(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._assigned.set()

    def _lost(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._assigned.clear()

    # ---- evaluation

    async def _evaluate(self) -> None:
        while True:
            await self._assigned.wait()
            watches = RecordWatches(self._hub, self._clock_us)
            deliveries = Deliveries(self._senders, self.log.write, self._clock_us)
            begun_us, problem = self._clock_us(), ""
            log.info("alerts: this gateway evaluates")
            try:
                while self._assigned.is_set():
                    try:
                        await self._tick(watches, deliveries, begun_us)
                    except CometError as error:
                        if error.message != problem:  # once, not at each tick
                            log.warning("alerts: not evaluated now: %s", error)
                        problem = error.message
                    except Exception:
                        log.exception("alerts: the evaluation failed")
                    await asyncio.sleep(TICK_S)
            finally:
                self.evaluates = False
                await deliveries.close()
                await watches.close()

    async def _tick(self, watches: RecordWatches, deliveries: Deliveries, begun_us: int) -> None:
        """Looks at all rules once."""
        if not (self.log.exists and self.log.ready):
            return
        states = list(self.log.book.rules.values())
        enabled = [one.rule for one in states if one.rule.enabled]
        await watches.follow(rule for rule in enabled if rule.follows)
        cluster = await self._facts() if any(not rule.follows for rule in enabled) else None
        now_us = self._clock_us()
        records: list[journal.Record] = []
        for one in states:
            records += decide(one, self._observe(one.rule, watches, cluster, begun_us, now_us), now_us)
        await self.log.write(records)
        self.evaluates = True
        deliveries.begin(list(self.log.book.outstanding.values()))
        await self.log.checkpoint()

    async def _facts(self) -> facts.Cluster:
        try:
            return await self._cluster()
        except Unavailable as error:
            return facts.Cluster(self._clock_us(), reachable=False, reason=error.message)

    def _observe(
        self, rule: Rule, watches: RecordWatches, cluster: facts.Cluster | None, begun_us: int, now_us: int
    ) -> Observation:
        if not rule.enabled:
            return Observation(None)
        if rule.follows:
            return watches.observe(rule, now_us)
        assert cluster is not None
        return of_cluster(rule, cluster, begun_us)

    @property
    def has_mail(self) -> bool:
        """Whether this gateway can send e-mails."""
        return self._senders.has_mail

    def statistics(self) -> dict[str, Any]:
        book = self.log.book
        return {
            "rules": len(book.rules),
            "firing": sum(one.state == "firing" for one in book.rules.values()),
            "outstanding": len(book.outstanding),
            "evaluates": self.evaluates,
        }


def new_id() -> str:
    return secrets.token_hex(6)
