"""What /metrics shows: counted as it happens, put into Prometheus' form when somebody asks.

Counting costs a dictionary and a list; prometheus_client's own counters would cost more than the rest of the guard.
Everything else is read at that moment from the `statistics()` of those who know.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import comet

ENDLESS: Final = "/stream"  # what routes end in whose answers have no end
CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Statistics = Callable[[], Mapping[str, Any]]


class Metrics(Collector):
    """One for an application, with a registry of its own."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._times: dict[tuple[str, str], list[float]] = {}  # method, route -> count of each bucket, then the sum
        self._sent: dict[str, int] = {}
        self._sources: dict[str, Statistics] = {}
        self.records_in = 0
        self.records_out = 0
        self.bytes_in = 0  # of bodies
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def watch(self, name: str, statistics: Statistics) -> None:
        """Has `traffic` or `hub` shown, too."""
        self._sources[name] = statistics

    def answered(self, method: str, route: str, status: int, seconds: float, sent_bytes: int) -> None:
        """A request is over; status 0: the client had gone."""
        if not route:
            method, route = "other", "none"  # what strangers make up must not make new series
        key = (method, route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        if route.endswith(ENDLESS):
            return  # how long it stayed says nothing of how quick we are; its bytes go another way
        times = self._times.get(key[:2])
        if times is None:
            times = self._times[key[:2]] = [0.0] * (len(BUCKETS_S) + 2)
        times[bisect_left(BUCKETS_S, seconds)] += 1
        times[-1] += seconds
        self._sent[route] = self._sent.get(route, 0) + sent_bytes

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield _gauge("comet_gateway_info", "The version that runs.", [({"version": comet.__version__}, 1)])
        yield _counter(
            "comet_gateway_requests",
            "Requests by route and status; 0: the client did not wait for the answer.",
            [({"method": m, "route": r, "status": str(s)}, n) for (m, r, s), n in self._requests.items()],
        )
        latency = HistogramMetricFamily(
            "comet_gateway_request_seconds", "How long answers took.", labels=("method", "route")
        )
        for key, times in self._times.items():
            total, buckets = 0.0, []
            for bound, number in zip([*map(str, BUCKETS_S), "+Inf"], times, strict=False):
                total += number
                buckets.append((bound, total))
            latency.add_metric(key, buckets, sum_value=times[-1])
        yield latency
        sent = [({"route": route}, size) for route, size in self._sent.items()]
        yield _counter("comet_gateway_sent_bytes", "Bytes of bodies of answers, event streams aside.", sent)
        yield _counter("comet_gateway_received_bytes", "Bytes of bodies of requests.", [({}, self.bytes_in)])
        flow = [({"direction": "in"}, self.records_in), ({"direction": "out"}, self.records_out)]
        yield _counter("comet_gateway_records", "Records written and read by requests.", flow)
        if (traffic := self._sources.get("traffic")) is not None:
            yield from _traffic(traffic())
        if (hub := self._sources.get("hub")) is not None:
            yield from _hub(hub())
        if (push := self._sources.get("push")) is not None:
            yield from _push(push())
        if (dashboard := self._sources.get("dashboard")) is not None:
            yield from _dashboard(dashboard())


def _traffic(now: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("comet_gateway_requests_running", "Requests being answered.", [({}, now["requests"])])
    yield _gauge("comet_gateway_body_bytes_held", "Bytes of requests in memory.", [({}, now["body_bytes"])])
    kinds = [({"kind": "sse"}, now["streams"]), ({"kind": "websocket"}, now["sockets"])]
    yield _gauge("comet_gateway_connections", "Connections that stay.", kinds)
    reasons = [({"limit": limit}, number) for limit, number in now["turned_away"].items()]
    yield _counter("comet_gateway_turned_away", "What was refused because a limit was reached.", reasons)


# Names in the hub's statistics -> what they mean.
_TOTALS: Final = {
    "delivered": "Records given to connections that stay.",
    "dropped": "Records that slow subscribers with drop_oldest did not get.",
    "conflated": "Records that later ones of their keys took the place of.",
}
_PUSH: Final = {
    "members": "Members of groups, of all WebSockets.",
    "replays": "Replays that are running.",
}
_FEED: Final = {
    "subscribers": "Subscribers of a topic that is followed.",
    "live": "Those of them who have all that there is, or nearly.",
    "behind_max": "Records that the slowest of them is behind.",
    "ring_records": "Recent records of it that are kept.",
    "ring_bytes": "Bytes of those.",
}


def _hub(now: Mapping[str, Any]) -> Iterator[Metric]:
    for name, about in _TOTALS.items():
        yield _counter(f"comet_gateway_push_{name}", about, [({}, now[name])])
    yield _gauge("comet_gateway_subscriptions", "Subscriptions of all connections.", [({}, now["subscriptions"])])
    waiting: Samples = [({}, now["waiting_for_brokers"])]
    yield _gauge("comet_gateway_feeds_waiting", "Reads of logs that wait for a broker to answer.", waiting)
    yield _counter(
        "comet_gateway_feed_reads", "Parts of logs read for subscribers that are behind.", [({}, now["reads"])]
    )
    listed = now["feeds"].items()
    yield _gauge("comet_gateway_feeds", "Topics that are followed.", [({}, len(listed))])
    came = [({"topic": topic}, feed["records"]) for topic, feed in listed]
    yield _counter("comet_gateway_feed_records", "Records of a topic that came from its brokers, once for all.", came)
    for name, about in _FEED.items():
        found = [({"topic": topic}, feed[name]) for topic, feed in listed]
        yield _gauge(f"comet_gateway_feed_{name}", about, found)
    for name, about in (("keys", "Keys in its tables of latest records."), ("bytes", "Bytes of those.")):
        held = [({"topic": topic}, sum(one[name] for one in feed["tables"].values())) for topic, feed in listed]
        yield _gauge(f"comet_gateway_feed_table_{name}", about, held)


def _push(now: Mapping[str, Any]) -> Iterator[Metric]:
    for name, about in _PUSH.items():
        yield _gauge(f"comet_gateway_push_{name}", about, [({}, now[name])])


def _dashboard(now: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("comet_gateway_dashboard_pages", "Pages kept up to date, each for all who look.", [({}, now["pages"])])
    rounds: Samples = [({}, now["rounds"])]
    yield _counter("comet_gateway_dashboard_rounds", "Rounds of questions to all brokers.", rounds)


Samples = Sequence[tuple[dict[str, str], float]]


def _counter(name: str, about: str, samples: Samples) -> Metric:
    return _family(CounterMetricFamily, name, about, samples)


def _gauge(name: str, about: str, samples: Samples) -> Metric:
    return _family(GaugeMetricFamily, name, about, samples)


def _family(kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, about: str, samples: Samples) -> Metric:
    labels = list(samples[0][0]) if samples else []
    family = kind(name, about, labels=labels)
    for values, number in samples:
        family.add_metric(list(values.values()), number)
    return family
