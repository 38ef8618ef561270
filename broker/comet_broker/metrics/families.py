"""Families of metrics, made of samples for one scrape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

OTHERS: Final = "_others"  # the label of those without a series of their own

Statistics = Mapping[str, Any]
Samples = Sequence[tuple[Mapping[str, str], float]]


def counter(name: str, about: str, samples: Samples) -> Metric:
    return _filled(CounterMetricFamily(name, about, labels=_labels(samples)), samples)


def gauge(name: str, about: str, samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(name, about, labels=_labels(samples)), samples)


def histogram(name: str, about: str, durations: Statistics) -> Metric:
    took = HistogramMetricFamily(name, about)
    total, buckets = 0.0, []
    for power, number in enumerate(durations["counts"][:-1]):
        total += number
        buckets.append((f"{(1 << power) / 1e6:g}", total))
    buckets.append(("+Inf", total + durations["counts"][-1]))
    took.add_metric([], buckets, sum_value=durations["sum_us"] / 1e6)
    return took


def _labels(samples: Samples) -> list[str]:
    return list(samples[0][0]) if samples else []


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Samples) -> Metric:
    for labels, number in samples:
        family.add_metric(list(labels.values()), number)
    return family
