"""The audit log of a broker: what clients were refused and denied, changed, and used for the first time in a day.

    Credentials, brokers' listener ─► refused ─┐  repetitions
    ClientAccess.check ─┬──────────► denied ───┤  counted      ┌─► a line of JSON, at once
                        └──────────► used ─────┼─► AuditEvent ─┤
    methods of Admin ──────────────► acted ────┘               └─► EventQueue ─► AuditTopic ─► the topic __audit

Nothing waits for it: a line is written at once, and an event without a place in the queue is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, Final

from comet.errors import CometError
from comet_broker import limits
from comet_broker.access.client_access import ClientAccess, Need
from comet_broker.audit.event import MESSAGE_CHARS_MAX, OTHERS, AuditEvent, cut, host_of
from comet_broker.audit.event_counts import EventCounts
from comet_broker.audit.event_queue import EventQueue, QueuedEvent
from comet_broker.audit.first_uses import FirstUses
from comet_broker.ports import Clock

LOGGER: Final = "comet.audit"
log = logging.getLogger(LOGGER)

CHECK_S: Final = 1.0  # between looks for repetitions to report
REPORTED_MAX: Final = 100  # repetitions of each table, at once
DAY_US: Final = 86_400_000_000
USES: Final = frozenset({"read", "write"})


class AuditLog:
    """Owned by the broker; on its loop. Implements access.client_access.AccessWatch."""

    def __init__(self, broker: int, clock: Clock) -> None:
        self.queue = EventQueue()
        self._broker = broker
        self._clock = clock
        self._refused = EventCounts(limits.AUDIT_ROWS_MAX, limits.AUDIT_ADDRESS_ROWS_MAX)
        self._denied = EventCounts(limits.AUDIT_ROWS_MAX, limits.AUDIT_PRINCIPAL_ROWS_MAX)
        self._uses = FirstUses(limits.AUDIT_USES_MAX, limits.AUDIT_PRINCIPAL_USES_MAX)
        self._events: Counter[str] = Counter()

    # ---- what happens

    def refused(self, peer: str, error: CometError) -> None:
        """A call without valid credentials."""
        self._events["refused"] += 1
        address, message = host_of(peer), cut(error.message, MESSAGE_CHARS_MAX)
        event = AuditEvent(event="refused", address=address, code=error.code, message=message)
        self._report(self._refused.note(address, message, event, self._clock.monotonic()))

    def denied(self, access: ClientAccess, need: Need, error: CometError) -> None:
        self._events["denied"] += 1
        operation, kind, name = need
        event = AuditEvent(
            event="denied",
            **_client(access),
            operation=operation,
            kind=kind,
            name=cut(name),
            code=error.code,
            message=cut(error.message, MESSAGE_CHARS_MAX),
        )
        key = (operation, kind, event.name)
        self._report(self._denied.note(access.principal, key, event, self._clock.monotonic()))

    def used(self, access: ClientAccess, need: Need) -> None:
        operation, kind, name = need
        if operation not in USES:
            return
        name = cut(name)
        found = self._uses.note(self._clock.wall_us() // DAY_US, access.principal, (operation, kind, name))
        if found is None:
            return
        self._events["first_use"] += 1
        principal, use = found
        if use == OTHERS:
            owner = "" if principal == OTHERS else principal
            self._report(AuditEvent(event="first_use", principal=owner, name=OTHERS))
            return
        self._report(
            AuditEvent(
                event="first_use",
                **_client(access),
                operation=operation,
                kind=kind,
                name=name,
            )
        )

    def acted(
        self, access: ClientAccess, act: str, need: Need, request: dict[str, Any], code: str, message: str
    ) -> None:
        """An admin act of a client, and its outcome."""
        self._events["admin"] += 1
        _, kind, name = need
        self._report(
            AuditEvent(
                event="admin",
                **_client(access),
                operation=act,
                kind=kind,
                name=cut(name),
                code=code,
                message=cut(message, MESSAGE_CHARS_MAX),
                dry_run=bool(request.get("dry_run")),
                request=request,
            )
        )

    # ---- where it goes

    def written(self) -> None:
        """Called after events were written to the topic: reports those that were dropped meanwhile."""
        dropped = self.queue.take_unreported()
        if dropped:
            self._events["dropped"] += 1
            message = "the topic could not be written for so long that these events are in the broker's log alone"
            self._report(AuditEvent(event="dropped", message=message, count=dropped))

    def _report(self, event: AuditEvent | None) -> None:
        if event is None:
            return
        time_us = self._clock.wall_us()
        text = event.at(self._broker, time_us).encode()
        log.info("%s", text)
        key = event.principal or event.address or f"broker:{self._broker}"
        self.queue.put(QueuedEvent(key.encode(), text.encode(), time_us), admin=event.event in {"admin", "dropped"})

    # ---- repetitions

    async def follow(self) -> None:
        """Reports repetitions. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.report_due()

    def report_due(self) -> None:
        now_s = self._clock.monotonic()
        for table in (self._refused, self._denied):
            for event in table.due(now_s, REPORTED_MAX):
                self._report(event)

    def report_rest(self) -> None:
        """Reports all repetitions, as the broker stops."""
        for table in (self._refused, self._denied):
            for event in table.rest():
                self._report(event)

    def statistics(self) -> dict[str, Any]:
        return {"events": dict(self._events), "queued": len(self.queue), "dropped": self.queue.dropped}


def _client(access: ClientAccess) -> dict[str, Any]:
    return {
        "principal": access.principal,
        "credential": access.credential,
        "via": access.via,
        "address": host_of(access.address),
    }
