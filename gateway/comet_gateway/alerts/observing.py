"""What a rule sees: of the cluster's facts, or of the records of its topic. Pure.

    RecordWatch     one rule of records: takes each record of its topic, and says at any time whether it is breached
    of_cluster      the observation of the other rules

A watch holds a bounded summary, not records: the last number, or BUCKETS parts of its window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from comet import RecordBatch
from comet.filters.paths import number_at
from comet_gateway.alerts.evaluation import Observation
from comet_gateway.alerts.rule import Rule
from comet_web import facts

BUCKETS: Final = 60  # of a window


class RecordWatch:
    """The records of one rule. `begun_us` is when it began to look: earlier records are unknown."""

    def __init__(self, rule: Rule, begun_us: int) -> None:
        self.rule = rule
        self.begun_us = begun_us
        self.skipped_us = 0  # when the gateway last skipped records that it was too slow for
        self._key = rule.key.encode() if rule.key else None
        self._filter = rule.parsed(begun_us)
        self._path = rule.path() if rule.field else ()
        self._last_us = begun_us
        self._value: float | None = None
        self._without = False  # a matching record has had no number in the field
        self._bucket_us = max(1, rule.window_s * 1_000_000 // BUCKETS)
        self._buckets: deque[tuple[int, float]] = deque()  # number of the bucket, its first value or its count

    def rows(self, batch: RecordBatch[bytes], rows: Sequence[int]) -> Sequence[int]:
        """The records of these that the rule is about, by index."""
        if self._key is not None:
            keys = batch.keys
            rows = [row for row in rows if keys[row] == self._key]
        return rows if self._filter is None else self._filter.rows(batch, rows)

    def take(self, document: Any, now_us: int) -> None:
        """One record of these, with its value decoded; the document is None where the value is not JSON."""
        self._last_us = now_us
        if self.rule.kind == "count":
            self._count(now_us)
        elif self._path:
            number = number_at(document, self._path)
            if number is None:
                self._without = True
                return
            self._value = number
            if self.rule.kind == "change":
                self._keep(number, now_us)

    def observe(self, now_us: int) -> Observation:
        rule, threshold = self.rule, self.rule.threshold
        match rule.kind:
            case "stale":
                quiet = (now_us - self._last_us) / 1e6
                return Observation(quiet >= threshold, quiet, f"no record for {quiet:.0f} s")
            case "count":
                self._drop_old(now_us)
                count = sum(number for _, number in self._buckets)
                return Observation(count > threshold, count, f"{count:.0f} records in {rule.window_s} s")
        if self._value is None:
            why = f"matching records have no number in {rule.field}" if self._without else ""
            return Observation(None, problem=why)
        if rule.kind == "value":
            breached = self._value > threshold if rule.operator == "above" else self._value < threshold
            return Observation(breached, self._value, f"{rule.field} is {self._value:g}")
        return self._changed(now_us)

    def _changed(self, now_us: int) -> Observation:
        self._drop_old(now_us)
        value, base = self._value, self._buckets[0][1] if self._buckets else self._value
        assert value is not None
        assert base is not None
        if not base:
            return Observation(None, problem=f"{self.rule.field} was 0 when the window began: no percentage of it")
        percent = (value - base) / abs(base) * 100
        breached = percent > self.rule.threshold if self.rule.operator == "above" else -percent > self.rule.threshold
        return Observation(breached, percent, f"{self.rule.field} changed by {percent:+.2f} % to {value:g}")

    def _count(self, now_us: int) -> None:
        at = now_us // self._bucket_us
        if self._buckets and self._buckets[-1][0] == at:
            self._buckets[-1] = (at, self._buckets[-1][1] + 1)
        else:
            self._buckets.append((at, 1))
            self._drop_old(now_us)

    def _keep(self, number: float, now_us: int) -> None:
        at = now_us // self._bucket_us
        if not self._buckets or self._buckets[-1][0] != at:
            self._buckets.append((at, number))
            self._drop_old(now_us)

    def _drop_old(self, now_us: int) -> None:
        oldest = now_us // self._bucket_us - BUCKETS
        while self._buckets and self._buckets[0][0] < oldest:
            self._buckets.popleft()
        assert len(self._buckets) <= BUCKETS + 1


def of_cluster(rule: Rule, cluster: facts.Cluster, begun_us: int) -> Observation:
    """The observation of a rule of a group, of partitions, or of the age of a topic. `begun_us`: when the gateway
    began to evaluate."""
    if not cluster.reachable:
        return Observation(
            None, problem=f"no broker answers: {cluster.reason}" if cluster.reason else "no broker answers"
        )
    if rule.kind in ("lag", "lag_seconds"):
        return _of_group(rule, cluster)
    if rule.topic and rule.topic not in cluster.topics:
        return Observation(None, problem=f"topic {rule.topic} does not exist")
    if rule.kind == "stale":
        last_us = cluster.topics[rule.topic].last_us
        quiet = max(0, cluster.time_us - (begun_us if last_us is None else last_us)) / 1e6
        return Observation(quiet >= rule.threshold, quiet, f"no record for {quiet:.0f} s")
    topics = [cluster.topics[rule.topic]] if rule.topic else cluster.topics.values()
    offline = rule.kind == "offline"
    found = {one.name: one.offline if offline else one.under_replicated for one in topics}
    count = sum(found.values())
    worst = sorted((name for name, number in found.items() if number), key=lambda name: -found[name])[:3]
    word = "offline" if offline else "under-replicated"
    where = f": {', '.join(worst)}" if worst else ""
    return Observation(count > rule.threshold, count, f"{count} partitions {word}{where}")


def _of_group(rule: Rule, cluster: facts.Cluster) -> Observation:
    group = cluster.groups.get(rule.group)
    if group is None:
        return Observation(None, problem=f"group {rule.group} does not exist")
    value = group.age_s if rule.kind == "lag_seconds" else group.lags.get(rule.topic) if rule.topic else group.lag
    if value is None:
        return Observation(None, problem=f"the lag of group {rule.group} is not known")
    unit = "s" if rule.kind == "lag_seconds" else "records"
    return Observation(value > rule.threshold, float(value), f"lag {value:.0f} {unit}")
