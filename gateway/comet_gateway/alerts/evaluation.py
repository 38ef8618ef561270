"""The decision about one rule at one moment: which records the journal gets. Pure.

    ok, resolved ── breached ─► pending ── for `for_s` ─► firing ── not breached ─► resolved
                                   └── not breached ─► ok

An unknown observation changes no state: a firing alert is not resolved because a broker is silent. A notice is due once
for each firing, later where the rule is muted or within its cool-down, and once for the end of a firing that was told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from comet_gateway.alerts.journal import Notified, Record, RuleState, State, Transition, Unable


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen. `breached` is None if it is unknown; then `problem` says why, or it is too early."""

    breached: bool | None
    value: float | None = None
    text: str = ""
    problem: str = ""


DISABLED = Observation(False, text="disabled")


def decide(known: RuleState, seen: Observation, now_us: int) -> list[Record]:
    """The records that the observation makes. `known` stays as it is: the journal changes it."""
    return list(_decide(known, seen if known.rule.enabled else DISABLED, now_us))


def _decide(known: RuleState, seen: Observation, now_us: int) -> Iterator[Record]:
    rule = known.rule
    if seen.problem != known.problem:
        yield Unable(rule.id, seen.problem, now_us)
    state = _next_state(known, seen, now_us)
    step, number = known.step, known.number
    if state != known.state:
        step += 1
        if state == "firing":
            number = step
        yield Transition(rule.id, step, state, now_us, seen.value, seen.text)
    if known.is_muted(now_us):
        return
    if state == "firing":
        cooled = not known.notified_us or now_us - known.notified_us >= rule.cool_down_s * 1_000_000
        if number not in (known.notified, known.acknowledged) and cooled:
            yield Notified(rule.id, number, "firing", now_us)
    elif state in ("resolved", "ok", "pending") and known.notified == number > known.closed:
        yield Notified(rule.id, number, "resolved", now_us)


def _next_state(known: RuleState, seen: Observation, now_us: int) -> State:
    state = known.state
    if seen.breached is None:
        return state
    if not seen.breached:
        return {"pending": "ok", "firing": "resolved"}.get(state, state)  # type: ignore[return-value] # a state
    waited = state == "pending" and now_us - known.since_us >= known.rule.for_s * 1_000_000
    if state == "firing" or waited or not known.rule.for_s:
        return "firing"
    return "pending"
