"""Results of a benchmark: their fields, the median of repeated runs, the JSON document and the table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Run = Mapping[str, float]
Result = dict[str, float]

# Every field that a result may have, and how its runs are combined: memory is the maximum.
FIELDS: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "records_per_s": statistics.median,
    "bytes_per_s": statistics.median,
    "p50_us": statistics.median,
    "p99_us": statistics.median,
    "p999_us": statistics.median,
    # Microseconds of the processor that an event costs each of the processes that it passes, and all of them together.
    "broker_event_us": statistics.median,
    "etcd_event_us": statistics.median,
    "consumer_event_us": statistics.median,
    "producer_event_us": statistics.median,
    "all_event_us": statistics.median,
    "broker_rss_bytes": max,
    "broker_cpu_s": statistics.median,
    # Of cores: seconds of the processor for a million records, by kind of process; the share of the cores in use;
    # and by the model, not measured, what a core more and a broker with a core of its own carry.
    "broker_million_s": statistics.median,
    "producer_million_s": statistics.median,
    "consumer_million_s": statistics.median,
    "etcd_million_s": statistics.median,
    "core_share": statistics.median,
    "model_core_records_per_s": statistics.median,
    "model_broker_records_per_s": statistics.median,
    # Fields of the rows that are not about speed.
    "startup_s": statistics.median,
    "import_s": statistics.median,
    "subscriber_rss_bytes": max,  # a later run reuses memory of an earlier one
    # Of groups: the rate as a share of that of the compared run; the time of a rebalance.
    "share": statistics.median,
    "leave_ms": statistics.median,
    "leave_max_ms": max,
    "kill_beyond_ms": statistics.median,
    "kill_beyond_max_ms": max,
    "join_ms": statistics.median,
    "join_max_ms": max,
    "gap_ms": max,
    "calm_gap_ms": max,
    # Of the gateway: requests answered; frames or events delivered to clients; its CPU and memory.
    "requests_per_s": statistics.median,
    "connections_per_s": statistics.median,
    "deliveries_per_s": statistics.median,
    "updates_per_s": statistics.median,
    "updates_per_key_s": max,
    "updates_per_key_s_max": max,
    "p50_ms": statistics.median,
    "p99_ms": statistics.median,
    "gateway_cores": statistics.median,
    "gateway_before_bytes": max,
    "gateway_rss_bytes": max,
    "cut_off": max,
    # Of Spark: seconds of the processor for a million records, in Java and in Python; how long after its window a bar
    # reached the viewer; the lag of the job, half way and at the end; the requested load.
    "java_cpu_s": statistics.median,
    "python_cpu_s": statistics.median,
    "delay_p50_ms": statistics.median,
    "delay_p95_ms": statistics.median,
    "lag_half_ms": max,
    "lag_ms": max,
    "requested_per_s": max,
    "symbols": max,
    "unwritten": sum,
    # Of tables: bytes that the broker sent; the processor time of the client; calls of the key-value view; the time
    # until a topic was compacted, and its bytes on disk afterwards, by those of the last record of each key.
    "sent_bytes": statistics.median,
    "client_cpu_s": statistics.median,
    "calls_per_s": statistics.median,
    "compacted_s": statistics.median,
    "live_share": statistics.median,
    # Of failovers: the time without an acknowledgement, and the fate of the records.
    "median_ms": statistics.median,
    "max_ms": max,
    "kills": sum,
    "lost": sum,
    "duplicated": sum,
}
_WHOLE: Final = (
    *("records_per_s", "bytes_per_s", "broker_rss_bytes", "subscriber_rss_bytes"),
    *(
        "requests_per_s",
        "connections_per_s",
        "deliveries_per_s",
        "updates_per_s",
        "gateway_before_bytes",
        "gateway_rss_bytes",
    ),
    *("sent_bytes", "calls_per_s"),
    *("kills", "lost", "duplicated", "cut_off", "updates_per_key_s_max"),
    *("requested_per_s", "symbols", "unwritten"),
    *("model_core_records_per_s", "model_broker_records_per_s"),
)
_FINE: Final = (
    "broker_cpu_s",
    "startup_s",
    "import_s",
    "share",
    "live_share",
    "client_cpu_s",
    "java_cpu_s",
    "python_cpu_s",
    "gateway_cores",
    "p50_ms",
    "p99_ms",
    "updates_per_key_s",
    *("broker_million_s", "producer_million_s", "consumer_million_s", "etcd_million_s", "core_share"),
)


def combine(runs: Sequence[Run]) -> Result:
    """One result of repeated runs, field by field.

    >>> combine([{"records_per_s": 1.0}, {"records_per_s": 9.0}, {"records_per_s": 2.0}])
    {'records_per_s': 2, 'runs': 3}
    """
    assert runs and all(run.keys() == runs[0].keys() <= FIELDS.keys() for run in runs)
    result: Result = {}
    for name, together in FIELDS.items():
        if name in runs[0]:
            value = together([run[name] for run in runs])
            result[name] = round(value) if name in _WHOLE else round(value, 4 if name in _FINE else 1)
    return result | {"runs": len(runs)}


def quantiles(latencies_us: Sequence[float]) -> Result:
    """p50, p99 and p99.9 by rank: a measured latency, not an interpolated one.

    >>> quantiles(range(1, 1001))
    {'p50_us': 500, 'p99_us': 990, 'p999_us': 999}
    """
    ordered = sorted(latencies_us)

    def at(share: float) -> float:
        rank = -int(-share * len(ordered) // 1)  # rounded up
        return ordered[min(max(rank, 1), len(ordered)) - 1]

    return {"p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999)}


def document(machine: Mapping[str, Any], results: Mapping[str, Result]) -> dict[str, Any]:
    return {"machine": dict(machine), "results": {name: dict(result) for name, result in results.items()}}


# Of a row that was measured over both transports: one line for each of its figures.
PAIR_COLUMNS: Final = ("what", "figure", "gRPC", "wire", "wire/gRPC")


def pairs(results: Mapping[str, Result]) -> dict[str, tuple[Result, Result]]:
    """The results over gRPC and over the wire, by the name of the row: those of NAME_grpc and NAME_wire.

    >>> pairs({"live_grpc": {"p50_us": 4.0}, "live_wire": {"p50_us": 2.0}, "limit_tcp": {}})
    {'live': ({'p50_us': 4.0}, {'p50_us': 2.0})}
    """
    names = [name.removesuffix("_grpc") for name in results if name.endswith("_grpc")]
    return {name: (results[f"{name}_grpc"], results[f"{name}_wire"]) for name in names if f"{name}_wire" in results}


def pair_rows(name: str, grpc: Run, wire: Run) -> list[list[str]]:
    """Rows under PAIR_COLUMNS; a ratio to nothing stays empty.

    >>> pair_rows("live", {"p50_us": 4.0, "runs": 1}, {"p50_us": 2.0, "runs": 1})
    [['live', 'p50_us', '4', '2', '0.50']]
    """
    figures = [figure for figure in grpc if figure != "runs"]
    return [
        [
            name if number == 0 else "",
            figure,
            _plain(grpc[figure]),
            _plain(wire[figure]),
            f"{wire[figure] / grpc[figure]:.2f}" if grpc[figure] else "",
        ]
        for number, figure in enumerate(figures)
    ]


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


COLUMNS: Final = ("what", "records/s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "broker MB", "broker CPU s", "also")


def table_row(name: str, result: Mapping[str, float]) -> list[str]:
    """One row under COLUMNS; a field that the result lacks stays empty."""

    def cell(field: str, form: str, scale: float = 1) -> str:
        return format(result[field] / scale, form) if field in result else ""

    return [
        name,
        cell("records_per_s", ",.0f"),
        cell("bytes_per_s", ",.0f", 1e6),
        cell("p50_us", ",.0f"),
        cell("p99_us", ",.0f"),
        cell("p999_us", ",.0f"),
        cell("broker_rss_bytes", ",.0f", 1e6),
        cell("broker_cpu_s", ".2f"),
        _also(result),
    ]


def _also(result: Mapping[str, float]) -> str:
    notes = []
    if "startup_s" in result:
        notes.append(f"first ack after {result['startup_s']:.2f} s")
    if "import_s" in result:
        notes.append(f"import comet {result['import_s'] * 1e3:.0f} ms")
    if "subscriber_rss_bytes" in result:
        notes.append(f"{result['subscriber_rss_bytes'] / 1e3:.0f} kB a subscriber")
    notes += _of_events(result)
    notes += _of_cores(result)
    notes += _of_gateway(result)
    notes += _of_spark(result)
    notes += _of_tables(result)
    if "share" in result:
        notes.append(f"{result['share']:.0%} of the row above")
    if "join_ms" in result:
        notes.append(f"join {result['join_ms']:,.0f} ms, at most {result['join_max_ms']:,.0f} ms")
    if "leave_ms" in result:
        notes.append(f"leave {result['leave_ms']:,.0f} ms, at most {result['leave_max_ms']:,.0f} ms")
    if "kill_beyond_ms" in result:
        beyond = result["kill_beyond_ms"], result["kill_beyond_max_ms"]
        notes.append(f"kill session {beyond[0]:+,.0f} ms, at most {beyond[1]:+,.0f} ms")
    if "gap_ms" in result:
        notes.append(f"longest wait of an event {result['gap_ms']:,.0f} ms, in calm {result['calm_gap_ms']:,.0f} ms")
    if "kills" in result:
        notes.append(f"median {result['median_ms']:,.0f} ms, at most {result['max_ms']:,.0f} ms without an ack")
        notes.append(f"{result['kills']} kills, {result['lost']} lost, {result['duplicated']} duplicated")
    return ", ".join(notes)


def _of_events(result: Mapping[str, float]) -> list[str]:
    roles = [role for role in ("broker", "etcd", "consumer", "producer", "all") if f"{role}_event_us" in result]
    if not roles:
        return []
    return ["CPU µs an event: " + " ".join(f"{role} {result[f'{role}_event_us']:,.0f}" for role in roles)]


def _of_cores(result: Mapping[str, float]) -> list[str]:
    if "core_share" not in result:
        return []
    kinds = ("broker", "producer", "consumer", "etcd")
    core, broker = result["model_core_records_per_s"], result["model_broker_records_per_s"]
    return [
        "CPU s a million: " + " ".join(f"{kind} {result[f'{kind}_million_s']:.3f}" for kind in kinds),
        f"{result['core_share']:.0%} of the cores",
        f"model: {core:,.0f}/s a core more, {broker:,.0f}/s a broker with a core of its own",
    ]


def _of_tables(result: Mapping[str, float]) -> list[str]:
    notes = []
    if "sent_bytes" in result:
        notes.append(f"{result['sent_bytes'] / 1e6:,.1f} MB sent")
    if "calls_per_s" in result:
        notes.append(f"{result['calls_per_s']:,.0f} calls/s")
    if "client_cpu_s" in result:
        notes.append(f"client CPU {result['client_cpu_s']:.2f} s")
    if "compacted_s" in result:
        notes.append(f"compacted in {result['compacted_s']:,.0f} s to {result['live_share']:.2f} of the live data")
    return notes


def _of_gateway(result: Mapping[str, float]) -> list[str]:
    notes = [
        f"{result[field]:,.0f} {name}/s"
        for field, name in (
            ("requests_per_s", "requests"),
            ("connections_per_s", "connections"),
            ("deliveries_per_s", "deliveries"),
        )
        if field in result
    ]
    if "p50_ms" in result:
        notes.append(f"p50 {result['p50_ms']:,.2f} ms, p99 {result['p99_ms']:,.2f} ms")
    if "updates_per_key_s_max" in result:
        mean, most = result["updates_per_key_s"], result["updates_per_key_s_max"]
        notes.append(f"of {result['updates_per_s']:,.0f} updates/s {mean:.1f} a key, at most {most} in a second")
    if "gateway_before_bytes" in result:
        notes.append(f"gateway {result['gateway_before_bytes'] / 1e6:.0f} MB before, {result['cut_off']} cut off")
    if "gateway_rss_bytes" in result:
        notes.append(f"gateway {result['gateway_rss_bytes'] / 1e6:.0f} MB, {result['gateway_cores']:.2f} cores")
    return notes


def _of_spark(result: Mapping[str, float]) -> list[str]:
    notes = []
    if "java_cpu_s" in result:
        notes.append(f"CPU s a million: {result['java_cpu_s']:.2f} Java, {result['python_cpu_s']:.2f} Python")
    if "requested_per_s" in result:
        requested = f"requested {result['requested_per_s']:,.0f}/s of {result['symbols']:,.0f} symbols"
        notes.append(f"{requested}, {result['unwritten']:,} not written, {result['lost']:,} in no bar")
        notes.append(f"bar after its window p50 {result['delay_p50_ms']:,.0f} ms, p95 {result['delay_p95_ms']:,.0f} ms")
        notes.append(f"behind {result['lag_half_ms']:,.0f} ms half way, {result['lag_ms']:,.0f} ms at the end")
    return notes
