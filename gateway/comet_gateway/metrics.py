"""The gateway's metrics: counted as things happen, put into Prometheus' format for each scrape of /metrics.

Counting costs a dictionary and a list; prometheus_client's own counters would cost more than the rest of the
middleware. Gauges are read during the scrape from the `statistics()` of their owners.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

import comet

ENDLESS: Final = "/stream"  # the end of paths whose answers are endless
CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text"
BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Statistics = Callable[[], Mapping[str, Any]]


class Metrics(Collector):
    """The metrics of one application, with a registry of its own."""

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
        """Adds a source of statistics, such as `traffic` or `hub`."""
        self._sources[name] = statistics

    def answered(self, method: str, route: str, status: int, seconds: float, sent_bytes: int) -> None:
        """Counts an answered request; status 0: the client had disconnected."""
        if not route:
            method, route = "other", "none"  # made-up paths must not create new series
        key = (method, route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        if route.endswith(ENDLESS):
            return  # the duration of a stream is not a latency; its bytes are counted elsewhere
        times = self._times.get(key[:2])
        if times is None:
            times = self._times[key[:2]] = [0.0] * (len(BUCKETS_S) + 2)
        times[bisect_left(BUCKETS_S, seconds)] += 1
        times[-1] += seconds
        self._sent[route] = self._sent.get(route, 0) + sent_bytes

    def exposition(self, accept: str = "") -> tuple[str, bytes]:
        """The page with its content type: in the format OpenMetrics if the header Accept names it, else in Prometheus'
        own."""
        if OPENMETRICS in accept:
            return openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest(self._registry)
        return CONTENT_TYPE, generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield _gauge("comet_gateway_info", "Version of the gateway.", [({"version": comet.__version__}, 1)])
        yield _counter(
            "comet_gateway_requests",
            "Requests by route and status; 0: the client disconnected before the answer.",
            [({"method": m, "route": r, "status": str(s)}, n) for (m, r, s), n in self._requests.items()],
        )
        latency = HistogramMetricFamily(
            "comet_gateway_request_seconds", "Duration of requests.", labels=("method", "route")
        )
        for key, times in self._times.items():
            total, buckets = 0.0, []
            for bound, number in zip([*map(str, BUCKETS_S), "+Inf"], times, strict=False):
                total += number
                buckets.append((bound, total))
            latency.add_metric(key, buckets, sum_value=times[-1])
        yield latency
        sent = [({"route": route}, size) for route, size in self._sent.items()]
        yield _counter("comet_gateway_sent_bytes", "Bytes of answers' bodies, without event streams.", sent)
        yield _counter("comet_gateway_received_bytes", "Bytes of requests' bodies.", [({}, self.bytes_in)])
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
        if (alerts := self._sources.get("alerts")) is not None:
            yield from _alerts(alerts())


def _traffic(now: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("comet_gateway_requests_running", "Requests being answered.", [({}, now["requests"])])
    bodies: Samples = [({}, now["bodies"])]
    yield _gauge("comet_gateway_bodies_waiting", "Requests that wait for the rest of their body.", bodies)
    yield _gauge("comet_gateway_body_bytes_held", "Bytes of requests in memory.", [({}, now["body_bytes"])])
    kinds = [({"kind": "sse"}, now["streams"]), ({"kind": "websocket"}, now["sockets"])]
    yield _gauge("comet_gateway_connections", "Open WebSockets and event streams.", kinds)
    reasons = [({"limit": limit}, number) for limit, number in now["turned_away"].items()]
    yield _counter(
        "comet_gateway_turned_away", "Requests and connections refused because a limit was reached.", reasons
    )


# Names in the hub's statistics -> help.
_TOTALS: Final = {
    "delivered": "Records pushed to WebSockets and event streams.",
    "dropped": "Records dropped for slow subscribers with drop_oldest.",
    "conflated": "Records replaced by later ones of their keys.",
}
_PUSH: Final = {
    "members": "Group members on WebSockets.",
    "replays": "Running replays.",
}
_FEED: Final = {
    "subscribers": "Subscribers of a followed topic.",
    "live": "Subscribers that are up to date, or nearly.",
    "behind_max": "Lag of the slowest subscriber, in records.",
    "ring_records": "Recent records of the topic in memory.",
    "ring_bytes": "Bytes of recent records in memory.",
}


def _hub(now: Mapping[str, Any]) -> Iterator[Metric]:
    for name, about in _TOTALS.items():
        yield _counter(f"comet_gateway_push_{name}", about, [({}, now[name])])
    yield _gauge("comet_gateway_subscriptions", "Open subscriptions.", [({}, now["subscriptions"])])
    waiting: Samples = [({}, now["waiting_for_brokers"])]
    yield _gauge("comet_gateway_feeds_waiting", "Reads of logs that wait for a broker.", waiting)
    yield _counter("comet_gateway_feed_reads", "Reads of logs for subscribers that are behind.", [({}, now["reads"])])
    listed = now["feeds"].items()
    yield _gauge("comet_gateway_feeds", "Followed topics.", [({}, len(listed))])
    counts = [({"topic": topic}, feed["records"]) for topic, feed in listed]
    yield _counter(
        "comet_gateway_feed_records", "Records received from brokers for all subscribers of a topic.", counts
    )
    for name, about in _FEED.items():
        found = [({"topic": topic}, feed[name]) for topic, feed in listed]
        yield _gauge(f"comet_gateway_feed_{name}", about, found)
    for name, about in (("keys", "Keys in the topic's tables of latest values."), ("bytes", "Bytes of those tables.")):
        held = [({"topic": topic}, sum(one[name] for one in feed["tables"].values())) for topic, feed in listed]
        yield _gauge(f"comet_gateway_feed_table_{name}", about, held)


def _push(now: Mapping[str, Any]) -> Iterator[Metric]:
    for name, about in _PUSH.items():
        yield _gauge(f"comet_gateway_push_{name}", about, [({}, now[name])])


def _dashboard(now: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("comet_gateway_dashboard_pages", "Live pages, each shared by its viewers.", [({}, now["pages"])])
    rounds: Samples = [({}, now["rounds"])]
    yield _counter("comet_gateway_dashboard_rounds", "Samples of all brokers' statistics.", rounds)


def _alerts(now: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("comet_gateway_alerts", "Alerts that exist.", [({}, now["rules"])])
    yield _gauge("comet_gateway_alerts_firing", "Alerts that are firing.", [({}, now["firing"])])
    waiting: Samples = [({}, now["outstanding"])]
    yield _gauge("comet_gateway_alert_notices_waiting", "Notices that are not delivered yet.", waiting)
    yield _gauge("comet_gateway_alerts_evaluating", "Whether this gateway evaluates.", [({}, int(now["evaluates"]))])


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
