"""Time series of one broker and of the topics that it leads: written once a second, read at any time.

A topic costs memory only after its first read or write, and nothing in seconds without traffic. At most
TOPIC_SERIES_MAX topics have series: a further topic replaces the one that has been idle for longest, or has none while
all of them are busy.

Pure. Owned by the recorder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from comet_broker import limits
from comet_broker.core.history import FINE_STORED, MINUTE_S, Flow, Gauge, Presence, Reduce, Values

TOPIC_FLOWS: Final = ("records_in", "bytes_in", "records_out", "bytes_out")
FLOWS: Final = (*TOPIC_FLOWS, "errors")
# The tail of a distribution is read for its worst value, also in a longer step.
GAUGES: Final[Mapping[str, Reduce]] = {
    "ack_p50_ms": Reduce.MEAN,
    "ack_p95_ms": Reduce.MAX,
    "ack_p99_ms": Reduce.MAX,
    "deliver_p50_ms": Reduce.MEAN,
    "deliver_p95_ms": Reduce.MAX,
    "deliver_p99_ms": Reduce.MAX,
    "cpu": Reduce.MEAN,
    "memory": Reduce.MEAN,
    "disk_used": Reduce.LAST,
    "sessions": Reduce.MEAN,
    "leading": Reduce.LAST,
    "lag": Reduce.LAST,
}


class Track(NamedTuple):
    """A figure over time; `topic` is empty for those of the broker. The last value's step ends at `end_us`."""

    topic: str
    figure: str
    step_s: int
    end_us: int
    values: Values


class MetricsStore:
    def __init__(self) -> None:
        self.presence = Presence()
        self.topics: dict[str, tuple[Flow, ...]] = {}  # the ones with the latest traffic are at the end
        self._flows = {name: Flow() for name in FLOWS}
        self._gauges = {name: Gauge(how) for name, how in GAUGES.items()}

    # ---- a tick: begin, the topics with traffic, all at once or some at a time, then the broker's figures

    def begin(self, second: int) -> None:
        """Begins the tick of the second that ended. If it is not after the last one, the clock was set back."""
        if second <= self.presence.end:
            self._cut(second - 1)

    def move(self, second: int, topic: str, counted: Sequence[float]) -> None:
        """Adds the counts of a topic, in the order of TOPIC_FLOWS."""
        for flow, value in zip(self._series(topic, second), counted, strict=False):
            flow.put(second, value)

    def tick(self, second: int, flows: Mapping[str, float], gauges: Mapping[str, float]) -> None:
        """Adds the broker's counts of that second, and its gauges at the end of it."""
        for name, flow in self._flows.items():
            flow.put(second, flows[name])
        for name, gauge in self._gauges.items():
            gauge.put(second, gauges[name])
        self.presence.put(second)

    def _cut(self, second: int) -> None:
        """Drops later counts after the clock was set back. Gauges and presence do so themselves."""
        oldest = self.presence.end - FINE_STORED + 1
        for flow in (*self._flows.values(), *(flow for flows in self.topics.values() for flow in flows)):
            flow.cut(second, oldest)

    def _series(self, topic: str, second: int) -> Sequence[Flow]:
        """The series of a topic with traffic; empty if there is no room."""
        series = self.topics.pop(topic, None)
        if series is None:
            if len(self.topics) >= limits.TOPIC_SERIES_MAX:
                stillest = next(iter(self.topics))
                if self.topics[stillest][0].end > second - MINUTE_S:
                    return ()
                del self.topics[stillest]
            series = tuple(Flow("f") for _ in TOPIC_FLOWS)
        self.topics[topic] = series
        return series

    def forget(self, topic: str) -> None:
        """Drops the series of a deleted topic, since another one may get its name."""
        self.topics.pop(topic, None)

    # ---- reading; unknown values are NaN

    def rates(self) -> dict[str, float]:
        return {name: flow.rate(self.presence) for name, flow in self._flows.items()}

    def topic_rates(self, topic: str) -> tuple[float, ...]:
        """The rates of a topic, in the order of TOPIC_FLOWS."""
        series = self.topics.get(topic, _STILL)
        return tuple(flow.rate(self.presence) for flow in series)

    def last(self, gauge: str) -> float:
        second = self.presence.end
        return self._gauges[gauge].read(1, second, second)[0]

    def tracks(self, step_s: int, since_us: int, topics: Iterable[str]) -> Iterator[Track]:
        """The figures of the broker and of the topics, all of the same steps, even if the caller iterates slowly."""
        first, last = self.presence.steps(step_s, since_us)
        end_us = last * step_s * 1_000_000
        seconds = self.presence.read(step_s, first, last)
        for name, gauge in self._gauges.items():
            yield Track("", name, step_s, end_us, gauge.read(step_s, first, last))
        for name, flow in self._flows.items():
            yield Track("", name, step_s, end_us, flow.read(step_s, first, last, seconds))
        for topic in topics:
            for name, flow in zip(TOPIC_FLOWS, self.topics.get(topic, _STILL), strict=True):
                yield Track(topic, name, step_s, end_us, flow.read(step_s, first, last, seconds))


_STILL: Final = tuple(Flow("f") for _ in TOPIC_FLOWS)  # of a topic without traffic; never written to
